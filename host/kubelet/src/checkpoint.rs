//! Reads the kubelet's checkpoint of allocated devices, `device-plugins/kubelet_internal_checkpoint` (upstream:
//! `pkg/kubelet/cm/devicemanager/checkpoint`). It has what PodResources leaves out: ordinary init containers, and what each
//! Allocate was answered with. The kubelet writes it after an Allocate and whenever it receives a list.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use akri_grpc::deviceplugin::ContainerAllocateResponse;
use akri_node::regular_file;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use prost::Message as _;
use serde::Deserialize;

/// The largest file that is read, in bytes.
const MAX_SIZE: u64 = 16 << 20;

/// The devices of one resource that one container was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocated {
    /// The UID of the container's pod.
    pub pod_uid: String,
    /// The extended resource.
    pub resource: String,
    /// Device plugin IDs.
    pub ids: BTreeSet<String>,
    /// The annotations of the answer; none if it cannot be decoded.
    pub annotations: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct File {
    #[serde(rename = "Data")]
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    #[serde(rename = "PodDeviceEntries")]
    entries: Option<Vec<Entry>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    #[serde(rename = "PodUID", default)]
    pod_uid: String,
    resource_name: String,
    /// The IDs by NUMA node.
    #[serde(rename = "DeviceIDs")]
    device_ids: BTreeMap<String, Vec<String>>,
    alloc_resp: Option<String>,
}

/// Returns the path of the checkpoint below the kubelet's root directory.
pub fn path(kubelet_dir: &Path) -> PathBuf {
    kubelet_dir.join("device-plugins/kubelet_internal_checkpoint")
}

/// Reads what the containers of this node were given of resources that begin with `prefix`. Blocks on the file system.
///
/// # Errors
/// If there is no checkpoint, or none that is understood. That says nothing about what is in use.
pub fn read(kubelet_dir: &Path, prefix: &str) -> Result<Vec<Allocated>, String> {
    let path = path(kubelet_dir);
    let (text, path) = (regular_file::read(&path, MAX_SIZE), path.display());
    let text = text.map_err(|error| format!("cannot read '{path}': {error}"))?;
    let allocated = parse(&text, prefix);
    allocated.map_err(|error| format!("'{path}' is no checkpoint of a known version: {error}"))
}

/// Parses the text of a checkpoint.
///
/// # Errors
/// If it is no checkpoint of a known version.
pub fn parse(text: &[u8], prefix: &str) -> Result<Vec<Allocated>, serde_json::Error> {
    let File { data } = serde_json::from_slice(text)?;
    let ours = data.entries.unwrap_or_default().into_iter().filter(|entry| entry.resource_name.starts_with(prefix));
    Ok(ours.map(allocated).collect())
}

fn allocated(entry: Entry) -> Allocated {
    let ids = entry.device_ids.into_values().flatten().collect();
    let response = entry.alloc_resp.and_then(|text| BASE64_STANDARD.decode(text).ok());
    let response = response.and_then(|bytes| ContainerAllocateResponse::decode(&*bytes).ok());
    let annotations = response.map(|response| response.annotations.into_iter().collect()).unwrap_or_default();
    Allocated { pod_uid: entry.pod_uid, resource: entry.resource_name, ids, annotations }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(resource: &str, ids: serde_json::Value) -> serde_json::Value {
        let annotations = [("akri.agent.slot-cam-1-0".to_owned(), "cam-1-0".to_owned())].into();
        let response = ContainerAllocateResponse { annotations, ..ContainerAllocateResponse::default() };
        let response = BASE64_STANDARD.encode(response.encode_to_vec());
        json!({"PodUID": "u", "ContainerName": "c", "ResourceName": resource, "DeviceIDs": ids, "AllocResp": response})
    }

    fn text(entries: &[serde_json::Value]) -> Vec<u8> {
        let data = json!({"PodDeviceEntries": entries, "RegisteredDevices": {}});
        json!({"Data": data, "Checksum": 1, "BootID": "b"}).to_string().into_bytes()
    }

    #[test] // rule 45
    fn ids_of_all_numa_nodes_are_read() {
        let entries = [
            entry("akri.sh/cam-1", json!({"-1": ["cam-1-0"], "0": ["cam-1-1"]})),
            entry("nvidia.com/gpu", json!({"0": ["0"]})),
        ];
        let read = parse(&text(&entries), "akri.sh/").unwrap();
        assert_eq!(read.len(), 1);
        assert_eq!(read[0].ids, ["cam-1-0".to_owned(), "cam-1-1".to_owned()].into());
        assert_eq!(read[0].annotations["akri.agent.slot-cam-1-0"], "cam-1-0");
    }

    #[test]
    fn checkpoint_without_entries_is_empty() {
        let text = json!({"Data": {"PodDeviceEntries": null, "RegisteredDevices": {}}, "Checksum": 1});
        assert_eq!(parse(text.to_string().as_bytes(), "akri.sh/").unwrap(), []);
    }

    #[test]
    fn answer_that_cannot_be_decoded_leaves_the_ids() {
        for response in [json!(null), json!("no base64!"), json!("AAAA")] {
            let mut entry = entry("akri.sh/cam", json!({"0": ["0"]}));
            entry["AllocResp"] = response;
            let read = parse(&text(&[entry]), "akri.sh/").unwrap();
            assert_eq!((read[0].ids.len(), read[0].annotations.len()), (1, 0));
        }
    }

    #[test] // rule 45
    fn damaged_or_unknown_checkpoint_is_an_error() {
        let complete = text(&[entry("akri.sh/cam", json!({"0": ["0"]}))]);
        for end in 0..complete.len() {
            assert!(parse(&complete[..end], "").is_err(), "cut at {end}");
        }
        for other in [json!({}), json!({"Data": 3}), json!({"Data": {"PodDeviceEntries": [{"ResourceName": "r"}]}})] {
            assert!(parse(other.to_string().as_bytes(), "").is_err(), "{other}");
        }
        let error = read(Path::new("/nonexistent"), "").unwrap_err().to_string();
        assert!(error.starts_with("cannot read '/nonexistent/"), "{error}");
    }
}
