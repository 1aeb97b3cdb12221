//! Requests to the API server: each is bounded in time, and each may be repeated.

use std::time::Duration;

use akri_api::json_patch::is_outdated;
use akri_brokers::Reason;
use akri_model::names::Key;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use kube::core::ApiResource;
use kube::{Client, Error, Resource};
use serde_json::Value;
use tokio::time::timeout;

/// Longest duration of one request to the API server.
const REQUEST: Duration = Duration::from_secs(10);

/// The field manager of all that the controller writes.
const MANAGER: &str = "akri-controller";

/// A request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RequestError {
    /// The API server does not take this object or this change; a change of the object may help.
    #[error("the API server refuses {what}: {message}")]
    Refused {
        /// The object.
        what: String,
        /// The API server's words.
        message: String,
    },
    /// The object is another version than expected: look again.
    #[error("{0} has changed meanwhile")]
    Conflict(String),
    /// The API server did not answer, or can't do it now.
    #[error("the API server can't do it now: {0}")]
    Unavailable(String),
}

impl RequestError {
    /// Returns the reason to show to users; `None` if the request only has to be retried.
    pub(crate) fn reason(&self) -> Option<Reason> {
        match self {
            Self::Refused { message, .. } => Some(Reason { word: "Refused".to_owned(), message: message.clone() }),
            Self::Conflict(_) | Self::Unavailable(_) => None,
        }
    }
}

/// A client for objects of any kind.
#[derive(Clone)]
pub(crate) struct Requests {
    client: Client,
}

/// The result of creating an object.
pub(crate) enum Created {
    /// It was created.
    New,
    /// There is one of its name, with this controller UID.
    Exists {
        /// The UID in its controller reference, empty without one.
        owner_uid: String,
    },
}

impl Requests {
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    /// An API for objects of a namespace, or for those that have none.
    fn api<K>(&self, namespace: &str) -> Api<DynamicObject>
    where
        K: Resource<DynamicType = ()>,
    {
        let resource = ApiResource::erase::<K>(&());
        match namespace {
            "" => Api::all_with(self.client.clone(), &resource),
            namespace => Api::namespaced_with(self.client.clone(), namespace, &resource),
        }
    }

    /// Creates an object, or says whose the one of its name is.
    pub(crate) async fn create<K>(&self, key: &Key, manifest: Value) -> Result<Created, RequestError>
    where
        K: Resource<DynamicType = ()>,
    {
        let object = serde_json::from_value(manifest).map_err(|error| refused(key, &error.to_string()))?;
        let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        let api = self.api::<K>(&key.namespace);
        match bounded(api.create(&params, &object)).await? {
            Ok(_) => Ok(Created::New),
            Err(Error::Api(status)) if status.reason == "AlreadyExists" => {
                let found = self.get::<K>(key).await?.ok_or_else(|| RequestError::Conflict(key.to_string()))?;
                let controller = found.metadata.owner_references.iter().flatten().find(|o| o.controller == Some(true));
                Ok(Created::Exists { owner_uid: controller.map(|owner| owner.uid.clone()).unwrap_or_default() })
            }
            Err(error) => Err(failed(key, &error)),
        }
    }

    /// Returns an object as it is now.
    pub(crate) async fn get<K>(&self, key: &Key) -> Result<Option<DynamicObject>, RequestError>
    where
        K: Resource<DynamicType = ()>,
    {
        bounded(self.api::<K>(&key.namespace).get_opt(&key.name)).await?.map_err(|error| failed(key, &error))
    }

    /// Deletes the object of that UID, and of that version if one is given. One that is gone is fine.
    pub(crate) async fn delete<K>(&self, key: &Key, uid: &str, version: Option<String>) -> Result<(), RequestError>
    where
        K: Resource<DynamicType = ()>,
    {
        let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: version };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
        match bounded(self.api::<K>(&key.namespace).delete(&key.name, &params)).await? {
            Ok(_) => Ok(()),
            Err(Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(error) => Err(failed(key, &error)),
        }
    }

    /// Changes an object by a JSON Patch. A test that fails is a conflict.
    pub(crate) async fn json_patch<K>(&self, key: &Key, operations: Value) -> Result<DynamicObject, RequestError>
    where
        K: Resource<DynamicType = ()>,
    {
        let patch = json_patch(key, operations)?;
        let answer = bounded(self.api::<K>(&key.namespace).patch(&key.name, &params(), &patch)).await?;
        answer.map_err(|error| patch_failed(key, &error))
    }

    /// Changes the status of an object by a JSON Patch. A test that fails is a conflict.
    pub(crate) async fn patch_status<K>(&self, key: &Key, operations: Value) -> Result<(), RequestError>
    where
        K: Resource<DynamicType = ()>,
    {
        let patch = json_patch(key, operations)?;
        let answer = bounded(self.api::<K>(&key.namespace).patch_status(&key.name, &params(), &patch)).await?;
        answer.map(drop).map_err(|error| patch_failed(key, &error))
    }

    /// Applies what the controller alone says of an object, which may be made by that.
    pub(crate) async fn apply<K>(&self, key: &Key, manifest: &Value) -> Result<(), RequestError>
    where
        K: Resource<DynamicType = ()>,
    {
        let params = PatchParams::apply(MANAGER).force();
        let answer = bounded(self.api::<K>(&key.namespace).patch(&key.name, &params, &Patch::Apply(manifest))).await?;
        answer.map(drop).map_err(|error| failed(key, &error))
    }

    /// Applies the controller's part of the status of the object of that UID. One that is gone is fine.
    pub(crate) async fn apply_status<K>(&self, key: &Key, uid: &str, status: Value) -> Result<(), RequestError>
    where
        K: Resource<DynamicType = ()>,
    {
        let manifest = serde_json::json!({
            "apiVersion": K::api_version(&()),
            "kind": K::kind(&()),
            "metadata": {"name": key.name, "uid": uid},
            "status": status,
        });
        let params = PatchParams::apply(MANAGER).force();
        let api = self.api::<K>(&key.namespace);
        match bounded(api.patch_status(&key.name, &params, &Patch::Apply(manifest))).await? {
            Ok(_) => Ok(()),
            Err(Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(error) => Err(failed(key, &error)),
        }
    }
}

fn params() -> PatchParams {
    PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() }
}

fn json_patch(key: &Key, operations: Value) -> Result<Patch<()>, RequestError> {
    serde_json::from_value(operations).map(Patch::Json).map_err(|error| refused(key, &error.to_string()))
}

async fn bounded<T>(request: impl Future<Output = T>) -> Result<T, RequestError> {
    let late = |_| RequestError::Unavailable(format!("no answer within {REQUEST:?}"));
    timeout(REQUEST, request).await.map_err(late)
}

fn refused(key: &Key, message: &str) -> RequestError {
    RequestError::Refused { what: key.to_string(), message: message.to_owned() }
}

/// Converts the error of a JSON Patch. A test that does not hold is a conflict.
fn patch_failed(key: &Key, error: &Error) -> RequestError {
    match error {
        Error::Api(status) if is_outdated(status) => RequestError::Conflict(key.to_string()),
        error => failed(key, error),
    }
}

fn failed(key: &Key, error: &Error) -> RequestError {
    match error {
        Error::Api(status) if matches!(status.code, 404 | 409) => RequestError::Conflict(key.to_string()),
        // 500 is what some versions answer to an object that they can't apply: only its words help.
        Error::Api(status) if status.code == 429 || status.code > 500 => {
            RequestError::Unavailable(status.message.clone())
        }
        Error::Api(status) => refused(key, &status.message),
        error => RequestError::Unavailable(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test] // rule 10
    fn refused_patch_is_no_conflict() {
        let key = Key::new("default", "cam");
        let error = |message: &str, details: Value| {
            let status = json!({"code": 422, "reason": "Invalid", "message": message, "details": details});
            patch_failed(&key, &Error::Api(serde_json::from_value(status).unwrap()))
        };
        assert_eq!(error("the server rejected our request", json!({})), RequestError::Conflict(key.to_string()));
        assert_eq!(error("spec: wrong", json!({"name": "cam"})), refused(&key, "spec: wrong"));
    }
}
