//! A handler that does nothing but harm is left alone, until there is reason to believe that it has changed.

use akri_api::condition::Condition;

use crate::support::node::{Agent, Node, identities, is_online, wait_for};

const LIMITS: &str = "  limits:\n    devices: 5\n";

async fn is_quarantined(node: &Node) -> Condition {
    node.wait_for_condition("guest", "HandlerAvailable", "False", "Quarantined").await
}

fn failures(agent: &Agent) -> usize {
    agent.log().matches("configuration=default/guest handler=\"guest\"").count()
}

#[tokio::test] // rule 92
async fn failing_handler_is_quarantined_until_a_change() {
    let node = Node::new();
    node.add_guest(LIMITS);
    node.write_configuration("guest", "guest", "      devices:1\n", "");
    node.write_configuration("other", "guest", "      devices:2\n", "");
    let agent = node.start();
    let found = node.wait_for_instances("every device", |list| list.len() == 3).await;

    node.write_configuration("guest", "guest", "      panic\n", "");
    let quarantined = is_quarantined(&node).await;
    for part in [
        "quarantined after 5 failed rounds in a row; the next one is in 10 minutes, or at once when the component, its \
         DiscoveryHandler or the Configuration changes; the last one failed: the handler trapped: ",
        "the guest panics on purpose",
    ] {
        assert!(quarantined.message.contains(part), "{part}: {}", quarantined.message);
    }
    let ready = node.wait_for_condition("guest", "Ready", "False", "Quarantined").await;
    assert!(ready.message.ends_with("; known devices stay as they are"), "{}", ready.message);
    assert_eq!(identities(&node.instances()), identities(&found));
    assert!(node.instances().iter().all(is_online));
    wait_for("all five failures in the log", || failures(&agent), |count| *count == 5).await;
    assert_eq!(node.condition("other", "Ready").unwrap().status, "True", "with another Configuration it works");

    // An edit of the object gives it another chance, which it does not take.
    node.write_handler("guest", "guest.wasm", "  interval: 200ms\n  limits:\n    devices: 6\n");
    wait_for("another round", || failures(&agent), |count| *count == 6).await;
    node.wait_for_condition("guest", "Ready", "False", "Trapped").await;
    node.wait_for_condition("guest", "HandlerAvailable", "True", "Running").await;
    // So does one of the Configuration, at once: the third failure would be 2 s away.
    node.write_configuration("guest", "guest", "      devices:1\n", "");
    node.wait_for_condition("guest", "Ready", "True", "Discovered").await;
    assert_eq!(identities(&node.instances()), identities(&found), "as if nothing had been");
}
