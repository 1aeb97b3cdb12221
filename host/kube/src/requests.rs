//! Requests to the API server: each is bounded in time, and each may be repeated.

use std::time::Duration;

use akri_model::names::Key;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use kube::core::ApiResource;
use kube::{Client, Error, Resource};
use serde::Serialize;
use serde_json::Value;
use tokio::time::timeout;

use crate::json_patch::is_outdated;

/// Attempts to change an object while others change it, too.
pub const MAX_ATTEMPTS: usize = 10;

/// The reason why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The object does not exist, or has another UID.
    #[error("{0} does not exist")]
    NotFound(Key),
    /// The object is another version than the request expects.
    #[error("{0} has changed meanwhile")]
    Conflict(Key),
    /// The API server does not take this object or this change; a change of the object may help.
    #[error("the API server refuses {key}: {message}")]
    Refused {
        /// The object.
        key: Key,
        /// The API server's words.
        message: String,
    },
    /// The API server did not answer, or can't do it now.
    #[error("{0}")]
    Unavailable(String),
}

/// The result of a request.
pub type RequestResult<T> = Result<T, RequestError>;

impl RequestError {
    /// Converts an error. A UID mismatch is a conflict in the words of Kubernetes, and means that the object of that UID was deleted.
    fn new(key: &Key, error: &Error) -> Self {
        let Error::Api(status) = error else { return Self::Unavailable(error.to_string()) };
        let is_other_uid = || ["uid mismatch", "UID in precondition"].iter().any(|text| status.message.contains(text)); // 1.20, newer
        match status.code {
            404 => Self::NotFound(key.clone()),
            409 if is_other_uid() => Self::NotFound(key.clone()),
            409 => Self::Conflict(key.clone()),
            _ if is_outdated(status) => Self::Conflict(key.clone()),
            // 500 is what some versions answer to an object that they can't apply: only its words help.
            code if code == 429 || code > 500 => {
                Self::Unavailable(format!("the API server can't do it now: {}", status.message))
            }
            _ => Self::Refused { key: key.clone(), message: status.message.clone() },
        }
    }

    fn unreadable(key: &Key, error: &serde_json::Error) -> Self {
        Self::Refused { key: key.clone(), message: error.to_string() }
    }
}

/// A kind of objects that is known when this is compiled.
pub trait Kind: Resource<DynamicType = ()> {}

impl<K: Resource<DynamicType = ()>> Kind for K {}

/// A client for objects of any kind. They are read as they are, whether they fit their type or not.
#[derive(Clone)]
pub struct Requests {
    client: Client,
    manager: &'static str,
    timeout: Duration,
}

impl Requests {
    /// Creates a client that writes as a field manager, with a timeout for each request.
    pub fn new(client: Client, manager: &'static str, timeout: Duration) -> Self {
        Self { client, manager, timeout }
    }

    /// Returns the client that it uses.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns an API for the objects of a namespace, or for all objects of the kind if that is empty.
    pub fn api<K: Kind>(&self, namespace: &str) -> Api<DynamicObject> {
        let resource = ApiResource::erase::<K>(&());
        match namespace {
            "" => Api::all_with(self.client.clone(), &resource),
            namespace => Api::namespaced_with(self.client.clone(), namespace, &resource),
        }
    }

    /// Runs a request within the timeout.
    ///
    /// # Errors
    /// If the API server does not answer in time, or does not do what is asked.
    pub async fn bounded<T>(&self, key: &Key, request: impl Future<Output = kube::Result<T>>) -> RequestResult<T> {
        let limit = self.timeout;
        let late = |_| RequestError::Unavailable(format!("the API server did not answer within {limit:?}"));
        timeout(limit, request).await.map_err(late)?.map_err(|error| RequestError::new(key, &error))
    }

    /// Creates an object; `None` if there is one of its name.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn create<K: Kind>(&self, key: &Key, manifest: &impl Serialize) -> RequestResult<Option<DynamicObject>> {
        let object = serde_json::to_value(manifest).and_then(serde_json::from_value);
        let object = object.map_err(|error| RequestError::unreadable(key, &error))?;
        let params = PostParams { field_manager: Some(self.manager.to_owned()), ..PostParams::default() };
        let api = self.api::<K>(&key.namespace);
        let created = async {
            match api.create(&params, &object).await {
                Err(Error::Api(status)) if status.reason == "AlreadyExists" => Ok(None),
                created => created.map(Some),
            }
        };
        self.bounded(key, created).await
    }

    /// Returns an object as it is now.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn get<K: Kind>(&self, key: &Key) -> RequestResult<Option<DynamicObject>> {
        self.bounded(key, self.api::<K>(&key.namespace).get_opt(&key.name)).await
    }

    /// Deletes the object of that UID, and of that version if one is given. Returns false if it has another version; that it
    /// does not exist is a success.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn delete<K: Kind>(&self, key: &Key, uid: &str, version: Option<String>) -> RequestResult<bool> {
        let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: version };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
        match self.bounded(key, self.api::<K>(&key.namespace).delete(&key.name, &params)).await {
            Ok(_) | Err(RequestError::NotFound(_)) => Ok(true),
            Err(RequestError::Conflict(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Changes an object by a JSON Patch.
    ///
    /// # Errors
    /// If the request fails. A test that does not hold is a conflict.
    pub async fn json_patch<K: Kind>(&self, key: &Key, operations: Value) -> RequestResult<DynamicObject> {
        let patch = json_patch(key, operations)?;
        self.bounded(key, self.api::<K>(&key.namespace).patch(&key.name, &self.patch_params(), &patch)).await
    }

    /// Changes the status of an object by a JSON Patch.
    ///
    /// # Errors
    /// If the request fails. A test that does not hold is a conflict.
    pub async fn patch_status<K: Kind>(&self, key: &Key, operations: Value) -> RequestResult<DynamicObject> {
        let patch = json_patch(key, operations)?;
        self.bounded(key, self.api::<K>(&key.namespace).patch_status(&key.name, &self.patch_params(), &patch)).await
    }

    /// Changes the status of the object of that UID, to which many writers write. `change` returns the operations for the object
    /// as it is now, or `None` if it is as wanted; it is called again if another writer was faster. Returns the object if that
    /// changed it.
    ///
    /// # Errors
    /// If a request fails, or `change` does.
    pub async fn change_status<K: Kind, E: From<RequestError>>(
        &self,
        key: &Key,
        uid: &str,
        mut change: impl FnMut(&Value) -> Result<Option<Value>, E>,
    ) -> Result<Option<DynamicObject>, E> {
        for _ in 0..MAX_ATTEMPTS {
            let object = self.get::<K>(key).await?.filter(|object| object.metadata.uid.as_deref() == Some(uid));
            let object = object.ok_or_else(|| RequestError::NotFound(key.clone()))?;
            let object = serde_json::to_value(object).map_err(|error| RequestError::unreadable(key, &error))?;
            let Some(operations) = change(&object)? else { return Ok(None) };
            match self.patch_status::<K>(key, operations).await {
                Ok(object) => return Ok(Some(object)),
                Err(RequestError::Conflict(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(RequestError::Conflict(key.clone()).into())
    }

    /// Applies the fields of an object that this field manager owns; creates the object if it does not exist.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn apply<K: Kind>(&self, key: &Key, manifest: &Value) -> RequestResult<()> {
        let params = PatchParams::apply(self.manager).force();
        let api = self.api::<K>(&key.namespace);
        self.bounded(key, api.patch(&key.name, &params, &Patch::Apply(manifest))).await.map(drop)
    }

    /// Applies this field manager's part of the status of the object of that UID. An absent object is a success.
    ///
    /// # Errors
    /// If the request fails.
    pub async fn apply_status<K: Kind>(&self, key: &Key, uid: &str, status: Value) -> RequestResult<()> {
        let manifest = serde_json::json!({
            "apiVersion": K::api_version(&()),
            "kind": K::kind(&()),
            "metadata": {"name": key.name, "uid": uid},
            "status": status,
        });
        let params = PatchParams::apply(self.manager).force();
        let api = self.api::<K>(&key.namespace);
        match self.bounded(key, api.patch_status(&key.name, &params, &Patch::Apply(manifest))).await {
            Ok(_) | Err(RequestError::NotFound(_) | RequestError::Conflict(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn patch_params(&self) -> PatchParams {
        PatchParams { field_manager: Some(self.manager.to_owned()), ..PatchParams::default() }
    }
}

fn json_patch(key: &Key, operations: Value) -> RequestResult<Patch<()>> {
    serde_json::from_value(operations).map(Patch::Json).map_err(|error| RequestError::unreadable(key, &error))
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
            RequestError::new(&key, &Error::Api(serde_json::from_value(status).unwrap()))
        };
        assert_eq!(error("the server rejected our request", json!({})), RequestError::Conflict(key.clone()));
        let refused = RequestError::Refused { key: key.clone(), message: "spec: wrong".to_owned() };
        assert_eq!(error("spec: wrong", json!({"name": "cam"})), refused);
    }
}
