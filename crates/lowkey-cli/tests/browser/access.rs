//! With access required: the page asks for a token, shows what its owner may see, and the node refuses the rest.

use std::process::Command;

use serde_json::json;

use crate::stage::Stage;

impl Stage {
    /// Runs `lowkey access` as somebody who may read the data directory; what it prints.
    fn access(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lowkey"));
        command.arg("access").args(arguments).arg("--data-dir").arg(&self.node().data_dir);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// A principal with these verbs on a path; its token.
    fn principal(&self, name: &str, path: &str, verbs: &str) -> String {
        self.access(&["principal", "add", name]);
        self.access(&["grant", name, path, verbs]);
        let told = self.access(&["token", "new", name]);
        told.split_whitespace().find(|word| word.starts_with("lk_")).expect("a token").to_owned()
    }

    fn log_in(&self, token: &str) {
        self.browser.wait_text("dialog h2", "Log in");
        self.browser.run("document.getElementById('token').focus()", json!([]));
        self.browser.type_text(token);
        self.browser.press(&["\u{e007}"]);
    }
}

#[test]
fn a_reader_sees_its_own_and_an_admin_acts() {
    let Some(stage) = Stage::set(1) else { return };
    let browser = &stage.browser;
    let lease = stage.lease("billing/worker");
    for lock in ["billing/nightly", "billing", "secret/plan", "billing-secret"] {
        stage.hold(lock, "billing/worker", lease, "");
    }
    stage.hold("billing/leader", "billing/worker", lease, "10.0.0.1:80");
    stage.hold("secret/leader", "billing/worker", lease, "10.0.0.2:80");
    let ended = stage.lease("other");
    for lock in ["billing/over", "secret/over"] {
        stage.hold(lock, "other", ended, "");
        stage.release(lock, ended);
    }
    let admin = stage.principal("ops", "/", "acquire,read,watch,admin");
    let reader = stage.principal("billing", "billing", "read,watch,audit");
    let many = stage.principal("many", "billing", "read,watch");
    stage.access(&["grant", "many", "reports", "read,watch"]);
    stage.access(&["grant", "many", "deploy", "read,watch"]);
    stage.access(&["require"]);

    stage.show("locks?prefix=billing%2F");
    stage.log_in("lk_0000000000000000_nonsense");
    browser.wait_text("dialog .problem", "refused the token");
    stage.log_in(&reader);
    browser.wait_text(".row", "nightly");
    browser.wait_text("#login", "Log out billing");
    // What it may see is there without being asked for, in every view, and nothing else is.
    for (view, told) in [
        ("locks", "nightly"),
        ("locks", "3 locks under “billing/”"),
        ("locks?sort=oldest", "billing/leader"),
        ("locks?prefix=bill", "nightly"),
        ("elections", "10.0.0.1:80"),
        ("audit", "billing/over"),
        ("sessions", "billing/worker"),
        ("sessions?owner=billing%2Fworker", "600 s"),
        ("lock/billing", "billing/worker"),
    ] {
        stage.show(view);
        browser.wait_text("main", told);
        assert!(!browser.text("main").contains("secret"), "{view}: {}", browser.text("main"));
    }
    stage.show("");
    browser.wait_text("main", "Only what is under “billing/”.");
    stage.hold_as(&admin, "secret/news", "ops");
    let feed = "return document.querySelector('.news').textContent.includes('billing/news')";
    crate::harness::eventually("the feed tells of what is its own", || {
        stage.hold_as(&admin, "billing/news", "ops");
        (browser.run(feed, json!([])) == true).then_some(())
    });
    assert!(!browser.text("main").contains("secret"), "{}", browser.text("main"));
    // What it may not see, the node says, not the page.
    for view in ["lock/secret%2Fplan", "locks?prefix=secret", "audit?lock=secret%2Fplan"] {
        stage.show(view);
        browser.wait_text("main", "You may not");
        assert!(!browser.text("main").contains("billing/worker"), "{view}: {}", browser.text("main"));
    }
    stage.show("cluster");
    browser.wait_text("#remove-1", "Remove");
    browser.click("#remove-1");
    browser.click("dialog .danger");
    browser.wait_text("dialog .problem", "You may not do this");
    browser.click("dialog button:not(.danger)");

    // Another one: nothing of before is left on view.
    browser.click("#login");
    browser.wait_text(".empty", "Log in to see the nodes.");
    browser.click("#login");
    stage.log_in(&many);
    browser.wait_text("#login", "Log out many");
    stage.show("locks");
    browser.wait_text(".row", "nightly");
    browser.wait_text(".summary", "“billing/”, “deploy/”, “reports/”");
    browser.wait_text(".summary", "listed anew every 5 s");
    browser.click("#login");
    browser.wait_text(".empty", "Log in to see locks.");
    browser.click("#login");
    stage.log_in(&admin);
    browser.wait_text("#login", "Log out ops");
    stage.show(&format!("session/{lease}"));
    browser.wait_text("h2", "Holds 6 locks");
    browser.click("#revoke");
    browser.click("dialog .danger");
    browser.wait_text(".empty", "This lease is over.");
    browser.run("location.hash = '#/lock/secret%2Fplan'", json!([]));
    browser.wait_text(".story", "ops/dashboard");
    stage.assert_no_complaints();
}
