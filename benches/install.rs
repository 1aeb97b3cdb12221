//! From the chart's first object applied to a device that pods can ask for.

use akri_tests::cluster::{Installation, Story};
use serde_json::json;

use crate::measure::{Table, readable};

pub(crate) async fn measure() -> Table {
    let mut table = Table::new("`kubectl apply` of the chart on two nodes that have the image, development build");
    let Some(story) = Story::begin_alone("install").await else {
        table.value("skipped: there is no cluster", "", "");
        return table;
    };
    let Some(installed) = Installation::new(&story, &[]).await else {
        table.value("skipped: helm is not there", "", "");
        return table;
    };
    let start = installed.since.elapsed();
    let spec = json!({"discoveryHandler": {"name": "debugEcho", "discoveryDetails": "descriptions: [lamp]"}});
    let name = story.namespace();
    let object = json!({"apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": name}, "spec": spec});
    story.apply_one(object).await.unwrap();
    story.wait_for_allocatable("node-a", &format!("akri.sh/{name}"), 1).await;
    let first = installed.since.elapsed();
    table.value("agents, controllers and webhooks ready and registered", readable(start), "target: ≤ 60 s");
    table.value(
        "its first device allocatable on a node",
        readable(first),
        "of which the Configuration ".to_owned() + &readable(first - start),
    );
    installed.end().await;
    table
}
