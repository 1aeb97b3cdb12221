//! Changes of a status to which many nodes write, by JSON Patches that test what they expect.

use akri_model::names::Key;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use serde_json::Value;
use tokio::time::timeout;

use super::{MANAGER, REQUEST, bounded, failed, is_lost_race, late};
use crate::ClusterError;

/// Tries while others write, too.
const TRIES: usize = 10;

/// Changes the status of the object of that UID. `change` returns the operations for the object as it is now, or nothing if it
/// is as wanted; it is called again if another writer was faster. Returns the object if that changed it.
pub(super) async fn change_status(
    api: &Api<DynamicObject>,
    key: &Key,
    uid: &str,
    mut change: impl FnMut(&Value) -> Result<Option<Value>, ClusterError>,
) -> Result<Option<DynamicObject>, ClusterError> {
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    for _ in 0..TRIES {
        let object = bounded(key, api.get(&key.name)).await?;
        if object.metadata.uid.as_deref() != Some(uid) {
            return Err(ClusterError::NotFound(key.clone()));
        }
        let object = serde_json::to_value(object).map_err(invalid)?;
        let Some(operations) = change(&object)? else { return Ok(None) };
        let patch = Patch::Json::<()>(serde_json::from_value(operations).map_err(invalid)?);
        match timeout(REQUEST, api.patch_status(&key.name, &params, &patch)).await.map_err(|_| late())? {
            Ok(object) => return Ok(Some(object)),
            Err(error) if is_lost_race(&error) => {}
            Err(error) => return Err(failed(key, &error)),
        }
    }
    Err(ClusterError::Unavailable(format!("the status of {key} changes all the time")))
}

fn invalid(error: serde_json::Error) -> ClusterError {
    ClusterError::Refused(error.to_string())
}
