//! The dashboard's files, and the call that is made for it.

use crate::support::{Answer, Edge, exchange};

async fn ask(edge: &Edge, line: &str, headers: &str) -> Answer {
    exchange(edge.http, format!("{line} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n"))
        .await
}

#[tokio::test]
async fn the_page_and_all_that_it_names_is_there_and_under_its_policy() {
    let edge = Edge::start().await;
    let page = edge.get("/ui/").await;
    assert_eq!((page.status, page.header("content-type")), (200, "text/html; charset=utf-8"));
    let named = page.body.split(['"']).filter(|text| text.ends_with(".js") || text.ends_with(".css"));
    let mut count = 0;
    for file in named {
        let answer = edge.get(&format!("/ui/{file}")).await;
        assert_eq!(answer.status, 200, "{file}");
        for (header, value) in [
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "DENY"),
            ("referrer-policy", "no-referrer"),
            ("cross-origin-resource-policy", "same-origin"),
            ("cache-control", "no-cache"),
        ] {
            assert_eq!(answer.header(header), value, "{file}: {header}");
        }
        let policy = answer.header("content-security-policy");
        assert!(
            policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"),
            "{policy}"
        );
        assert!(!policy.contains("unsafe") && !policy.contains('*') && !policy.contains("http"), "{policy}");
        count += 1;
    }
    assert!(count > 5, "{count}");
}

#[tokio::test]
async fn a_file_that_the_browser_has_is_not_sent_again() {
    let edge = Edge::start().await;
    let first = edge.get("/ui/app.js").await;
    let tag = first.header("etag");
    assert!(tag.len() > 2 && tag.starts_with('"') && tag.ends_with('"'), "{tag}");
    for known in [tag.to_owned(), format!("W/{tag}"), format!("\"other\", {tag}"), "*".to_owned()] {
        let again = ask(&edge, "GET /ui/app.js", &format!("if-none-match: {known}\r\n")).await;
        assert_eq!((again.status, again.body.as_str(), again.header("etag")), (304, "", tag), "{known}");
        assert!(again.headers.contains_key("content-security-policy"));
    }
    let other = ask(&edge, "GET /ui/app.js", "if-none-match: \"other\"\r\n").await;
    assert_eq!((other.status, &other.body), (200, &first.body));
}

#[tokio::test]
async fn the_folder_leads_to_the_page_and_what_is_not_there_is_told_as_everywhere() {
    let edge = Edge::start().await;
    let moved = edge.get("/ui").await;
    assert_eq!((moved.status, moved.header("location")), (308, "/ui/"));
    assert_eq!(ask(&edge, "HEAD /ui/", "").await.body, "");
    for path in ["/ui/index.html", "/ui/../ui.rs", "/ui/%2e%2e/ui.rs", "/ui/views/", "/ui/nothing.js"] {
        let missing = edge.get(path).await;
        assert_eq!((missing.status, missing.reason().as_str()), (404, "NO_SUCH_ROUTE"), "{path}");
    }
    let posted = edge.post("/ui/", "").await;
    assert_eq!((posted.status, posted.reason().as_str()), (405, "METHOD_NOT_ALLOWED"));
}

#[tokio::test]
async fn any_page_may_link_to_it_and_none_may_load_it() {
    let edge = Edge::start().await;
    for site in ["cross-site", "same-site"] {
        for path in ["/ui", "/ui/"] {
            let navigates = format!("sec-fetch-site: {site}\r\nsec-fetch-mode: navigate\r\n");
            let followed = ask(&edge, &format!("GET {path}"), &navigates).await;
            assert!([200, 308].contains(&followed.status), "{site} {path}: {followed:?}");
            let loads = format!("sec-fetch-site: {site}\r\nsec-fetch-mode: no-cors\r\n");
            let loaded = ask(&edge, &format!("GET {path}"), &loads).await;
            assert_eq!((loaded.status, loaded.reason().as_str()), (403, "FOREIGN_ORIGIN"), "{site} {path}");
        }
        let script = format!("sec-fetch-site: {site}\r\nsec-fetch-mode: navigate\r\n");
        assert_eq!(ask(&edge, "GET /ui/app.js", &script).await.status, 403, "no file but the page is a page");
    }
}

#[tokio::test]
async fn the_status_of_all_nodes_is_told_in_both_dialects() {
    let edge = Edge::start().await;
    let told = edge.get("/v1/cluster/status").await.json();
    assert_eq!((told["nodeId"].as_str(), told["nodes"][0]["term"].as_str()), (Some("node-1"), Some("7")));
    assert_eq!(told["nodes"][1]["problem"], "it cannot be reached from here");
    assert_eq!(told["nodes"][0]["diskRoom"], "AMPLE");
    let asked = lowkey_api::v1::GetClusterStatusRequest {};
    let told = edge.client().await.get_cluster_status(asked).await.unwrap().into_inner();
    assert_eq!((told.node_id.as_str(), told.nodes.len()), ("node-1", 2));
    let refused = edge.get("/v1/cluster/status?stale=true").await;
    assert_eq!(refused.status, 400, "{refused:?}");
}
