//! The checkpoint, which a kubelet keeps across restarts: allocated devices and known resources, in the form of Kubernetes 1.20
//! and newer. The real one has no `Init`: it looks at its pods.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

use akri_grpc::deviceplugin::ContainerAllocateResponse;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use prost::Message;
use serde::Serialize;
use serde_json::Value;

use super::admission::Admitted;
use super::view::{ResourceView, View};

pub(super) const FILE: &str = "kubelet_internal_checkpoint";

/// Reads a checkpoint. A resource has no devices until its plugin registers again.
pub(super) fn read(path: &Path) -> View {
    let Ok(text) = fs::read(path) else { return View::default() };
    let data: Value = serde_json::from_slice(&text).unwrap();
    let strings = |value: &Value| -> Vec<String> { serde_json::from_value(value.clone()).unwrap() };
    let mut view = View::default();
    for resource in data["Data"]["RegisteredDevices"].as_object().unwrap().keys().cloned() {
        view.resources.insert(resource, ResourceView::default());
    }
    for entry in data["Data"]["PodDeviceEntries"].as_array().unwrap() {
        let text = |name: &str| entry[name].as_str().unwrap().to_owned();
        let (pod, container, resource) = (text("PodUID"), text("ContainerName"), text("ResourceName"));
        let bytes = BASE64_STANDARD.decode(text("AllocResp")).unwrap();
        let admitted = Admitted {
            ids: strings(&entry["DeviceIDs"]["-1"]),
            init: entry["Init"].as_bool().unwrap(),
            response: ContainerAllocateResponse::decode(bytes.as_slice()).unwrap(),
        };
        view.pods.insert((pod, container, resource), admitted);
    }
    view
}

pub(super) fn write(path: &Path, view: &View) {
    let text = serde_json::to_vec(&Checkpoint::of(view)).unwrap();
    let temporary = path.with_extension("tmp");
    match fs::write(&temporary, text).and_then(|()| fs::rename(temporary, path)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {} // the story has ended, and its directory is gone
        written => written.unwrap(),
    }
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Checkpoint<'v> {
    data: Data<'v>,
    checksum: u32,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Data<'v> {
    pod_device_entries: Vec<Entry<'v>>,
    registered_devices: BTreeMap<&'v str, &'v BTreeSet<String>>,
}

#[derive(Serialize)]
struct Entry<'v> {
    #[serde(rename = "PodUID")]
    pod: &'v str,
    #[serde(rename = "ContainerName")]
    container: &'v str,
    #[serde(rename = "ResourceName")]
    resource: &'v str,
    #[serde(rename = "DeviceIDs")]
    ids: BTreeMap<&'static str, &'v [String]>,
    #[serde(rename = "AllocResp")]
    response: String,
    #[serde(rename = "Init")]
    init: bool,
}

impl<'v> Checkpoint<'v> {
    fn of(view: &'v View) -> Self {
        let entry = |((pod, container, resource), admitted): (&'v (String, String, String), &'v Admitted)| Entry {
            pod,
            container,
            resource,
            ids: BTreeMap::from([("-1", &*admitted.ids)]),
            response: BASE64_STANDARD.encode(admitted.response.encode_to_vec()),
            init: admitted.init,
        };
        let pod_device_entries = view.pods.iter().map(entry).collect();
        let registered_devices = view.resources.iter().map(|(name, resource)| (&**name, &resource.healthy)).collect();
        Self { data: Data { pod_device_entries, registered_devices }, checksum: 0 }
    }
}
