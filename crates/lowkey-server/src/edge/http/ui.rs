//! The dashboard: a page for people, as files within the program.
//!
//! The files are in `ui/`, written by hand, and served as they are. The page can do nothing that another client
//! of the public API could not. What must always be true:
//!
//! - The page loads nothing from elsewhere and runs no script but these files: the policy in the headers says so
//!   to the browser. No other page may frame it.
//! - A browser keeps no file longer than the program that it is from: each is asked for again, by its tag.
//! - No file needs a permission: they say nothing of the cluster.

use std::sync::{Arc, LazyLock};

use ::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::Router;
use axum::response::{IntoResponse, Response};

use super::get;

/// Scripts and styles from the node alone, requests to the node alone. Text never becomes markup or code: with
/// trusted types, and no policy that makes any, assigning to `innerHTML` throws.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

struct Asset {
    path: &'static str,
    content_type: &'static str,
    bytes: &'static [u8],
}

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const PICTURE: &str = "image/svg+xml";

macro_rules! assets {
    ($($path:literal $content_type:ident $file:literal,)*) => {
        &[$(Asset {
            path: $path,
            content_type: $content_type,
            bytes: include_bytes!(concat!("../../../ui/", $file)),
        },)*]
    };
}

const ASSETS: &[Asset] = assets![
    "/ui/" HTML "index.html",
    "/ui/style.css" STYLE "style.css",
    "/ui/icon.svg" PICTURE "icon.svg",
    "/ui/app.js" SCRIPT "app.js",
    "/ui/api.js" SCRIPT "api.js",
    "/ui/dom.js" SCRIPT "dom.js",
    "/ui/dialogs.js" SCRIPT "dialogs.js",
    "/ui/cluster.js" SCRIPT "cluster.js",
    "/ui/locks.js" SCRIPT "locks.js",
    "/ui/rows.js" SCRIPT "rows.js",
    "/ui/views/overview.js" SCRIPT "views/overview.js",
    "/ui/views/locks.js" SCRIPT "views/locks.js",
    "/ui/views/lock.js" SCRIPT "views/lock.js",
    "/ui/views/elections.js" SCRIPT "views/elections.js",
    "/ui/views/sessions.js" SCRIPT "views/sessions.js",
    "/ui/views/audit.js" SCRIPT "views/audit.js",
    "/ui/views/nodes.js" SCRIPT "views/nodes.js",
];

/// The tags of all assets. The same bytes have the same tag, on every node and after every start.
static TAGS: LazyLock<Vec<HeaderValue>> = LazyLock::new(|| {
    let tag = |asset: &Asset| format!("\"{:08x}-{:x}\"", crc32c::crc32c(asset.bytes), asset.bytes.len());
    let tags = ASSETS.iter().map(|asset| HeaderValue::try_from(tag(asset)));
    tags.map(|tag| tag.unwrap_or(HeaderValue::from_static("\"?\""))).collect()
});

/// The routes of the page and of everything that it loads.
pub(super) fn routes<S: Send + Sync + 'static>() -> Router<Arc<S>> {
    // The browser keeps what follows the `#`.
    let to_page = async || (StatusCode::PERMANENT_REDIRECT, [(header::LOCATION, "/ui/")]);
    ASSETS.iter().enumerate().fold(Router::new().route("/ui", get(to_page)), |router, (number, asset)| {
        router.route(asset.path, get(async move |headers: HeaderMap| answer(number, asset, &headers)))
    })
}

fn answer(number: usize, asset: &'static Asset, headers: &HeaderMap) -> Response {
    let tag = &TAGS[number];
    let fixed = [
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    let tagged = [(header::ETAG, tag.clone())];
    let known = headers.get_all(header::IF_NONE_MATCH).iter().any(|known| {
        let known = known.to_str().unwrap_or_default().split(',').map(str::trim);
        known.map(|known| known.trim_start_matches("W/")).any(|known| known == "*" || known == tag)
    });
    if known {
        return (StatusCode::NOT_MODIFIED, tagged, fixed).into_response();
    }
    (tagged, fixed, [(header::CONTENT_TYPE, asset.content_type)], asset.bytes).into_response()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// So much a person on a bad line waits for.
    const BYTES_MAX: usize = 120_000;

    #[test]
    fn the_whole_page_is_small() {
        let bytes: usize = ASSETS.iter().map(|asset| asset.bytes.len()).sum();
        assert!(bytes < BYTES_MAX, "{bytes}");
    }

    /// What a name could do harm with: anything that turns text into markup or code.
    #[test]
    fn no_text_becomes_markup_or_code() {
        const DANGEROUS: [&str; 10] = [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "createContextualFragment",
            "DOMParser",
            "srcdoc",
            "setAttribute(\"style\"",
        ];
        for asset in ASSETS {
            let text = String::from_utf8_lossy(asset.bytes);
            for word in DANGEROUS {
                assert!(!text.contains(word), "{} has {word}", asset.path);
            }
            if asset.content_type == HTML {
                assert!(!text.contains(" style=") && !text.contains(" on") && !text.contains("<style"));
                assert_eq!(
                    text.matches("<script").count(),
                    text.matches("<script type=\"module\" src=").count()
                );
            }
        }
    }

    /// The page asks nobody but the node that it is from.
    #[test]
    fn nothing_is_loaded_from_elsewhere() {
        for asset in ASSETS {
            let text = String::from_utf8_lossy(asset.bytes).replace("http://www.w3.org/2000/svg", "");
            let links: Vec<_> = text.match_indices("//").map(|(at, _)| &text[..at]).collect();
            let is_address = |before: &&str| before.ends_with("http:") || before.ends_with("https:");
            // An address that is put together from a member's is a link for the user to follow.
            let put_together = text.matches("`http://${").count() + text.matches("`https://${").count();
            assert!(
                links.iter().filter(|before| is_address(before)).count() <= put_together,
                "{}",
                asset.path
            );
            assert!(!text.contains("@import") && !text.contains("url("), "{}", asset.path);
        }
    }

    #[test]
    fn every_file_of_the_folder_is_served_and_every_import_is_a_file() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("ui");
        let mut found = 0;
        for folder in [folder.clone(), folder.join("views")] {
            for entry in std::fs::read_dir(folder).unwrap() {
                found += usize::from(entry.unwrap().file_type().unwrap().is_file());
            }
        }
        assert_eq!(found, ASSETS.len());
        for asset in ASSETS.iter().filter(|asset| asset.content_type == SCRIPT) {
            let text = String::from_utf8_lossy(asset.bytes);
            for line in text.lines().filter(|line| line.contains(" from \".")) {
                let (_, imported) = line.split_once(" from \"").unwrap();
                let imported = imported.trim_end_matches("\";");
                let mut folder: Vec<_> = asset.path.rsplit_once('/').unwrap().0.split('/').collect();
                for part in imported.split('/').filter(|part| *part != ".") {
                    match part {
                        ".." => assert!(folder.pop().is_some(), "{imported} leads out"),
                        part => folder.push(part),
                    }
                }
                let path = folder.join("/");
                assert!(ASSETS.iter().any(|asset| asset.path == path), "{}: {imported}", asset.path);
            }
        }
    }
}
