//! What a kubelet remembers over its restarts: who holds what, and which resources there were.

use std::fs;
use std::path::Path;

use akri_grpc::deviceplugin::ContainerAllocateResponse;
use prost::Message;
use serde_json::{Value, json};

use super::admission::Admitted;
use super::view::{ResourceView, View};

pub(super) const FILE: &str = "kubelet_internal_checkpoint";

/// Of the view only what a checkpoint has: a resource comes back without devices until its plugin registers again.
pub(super) fn read(path: &Path) -> View {
    let Ok(text) = fs::read(path) else { return View::default() };
    let data: Value = serde_json::from_slice(&text).unwrap();
    let strings = |value: &Value| -> Vec<String> { serde_json::from_value(value.clone()).unwrap() };
    let mut view = View::default();
    for resource in strings(&data["registeredDevices"]) {
        view.resources.insert(resource, ResourceView::default());
    }
    for entry in data["podDeviceEntries"].as_array().unwrap() {
        let [pod, container, resource] = strings(&entry["key"]).try_into().unwrap();
        let bytes: Vec<u8> = serde_json::from_value(entry["allocResp"].clone()).unwrap();
        let admitted = Admitted {
            ids: strings(&entry["deviceIDs"]),
            init: entry["init"].as_bool().unwrap(),
            response: ContainerAllocateResponse::decode(bytes.as_slice()).unwrap(),
        };
        view.pods.insert((pod, container, resource), admitted);
    }
    view
}

pub(super) fn write(path: &Path, view: &View) {
    let entry = |(key, admitted): (&(String, String, String), &Admitted)| {
        json!({
            "key": [&key.0, &key.1, &key.2],
            "deviceIDs": admitted.ids,
            "init": admitted.init,
            "allocResp": admitted.response.encode_to_vec(),
        })
    };
    let entries: Vec<_> = view.pods.iter().map(entry).collect();
    let resources: Vec<_> = view.resources.keys().collect();
    let text = json!({ "podDeviceEntries": entries, "registeredDevices": resources }).to_string();
    let temporary = path.with_extension("tmp");
    fs::write(&temporary, text).unwrap();
    fs::rename(temporary, path).unwrap();
}
