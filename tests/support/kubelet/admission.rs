//! Admission: allocation of devices to containers (`devicesToAllocate`, `allocateContainerResources`).

use std::collections::BTreeSet;

use akri_grpc::deviceplugin::{
    AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse, ContainerPreferredAllocationRequest,
    PreferredAllocationRequest,
};
use tonic::{Code, Status};

use super::state::{Endpoint, Inner, Reuse, State};

/// The devices of a container.
#[derive(Debug, Clone, PartialEq)]
pub struct Admitted {
    /// Its devices, in ascending order.
    pub ids: Vec<String>,
    /// True for an init container, which PodResources does not list.
    pub init: bool,
    /// The plugin's response, replayed when the container restarts.
    pub response: ContainerAllocateResponse,
}

/// The reason why a pod was not admitted, worded as by the kubelet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdmissionError {
    #[error("the pod has failed before")]
    PodFailed,
    #[error("pod {0:?} container {1:?} changed request for resource {2:?} from {3} to {4}")]
    Changed(String, String, String, usize, usize),
    #[error("cannot allocate unregistered device {0}")]
    Unregistered(String),
    #[error("no healthy devices present; cannot allocate unhealthy devices {0}")]
    NoHealthy(String),
    #[error("previously allocated devices are no longer healthy; cannot allocate unhealthy devices {0}")]
    NoLongerHealthy(String),
    #[error("requested number of devices unavailable for {resource}. Requested: {requested}, Available: {available}")]
    TooFew { resource: String, requested: usize, available: usize },
    #[error("allocate failed due to rpc error: code = {0:?} desc = {1}")]
    Refused(Code, String),
    #[error("no containers return in allocation response")]
    NoContainers,
}

impl From<Status> for AdmissionError {
    fn from(status: Status) -> Self {
        Self::Refused(status.code(), status.message().to_owned())
    }
}

/// A request for devices.
struct Ask<'a> {
    pod: &'a str,
    container: &'a str,
    resource: &'a str,
    count: usize,
}

/// The device manager's decision before it calls the plugin.
enum Choice {
    /// The container already has its devices.
    Kept(Admitted),
    /// Take these, and `needed` of the available ones.
    Take { reused: BTreeSet<String>, available: BTreeSet<String>, needed: usize, endpoint: Endpoint },
}

pub(super) async fn admit(
    state: &State,
    pod: &str,
    container: &str,
    resource: &str,
    count: usize,
    init: bool,
) -> Result<Admitted, AdmissionError> {
    let _one_at_a_time = state.admission.lock().await;
    let ask = Ask { pod, container, resource, count };
    let result = allocate(state, &ask, init).await;
    state.change(|state| match &result {
        Ok(admitted) => state.admitted(&ask, admitted.clone()),
        Err(_) => state.pod_failed(pod),
    });
    state.save();
    result
}

pub(super) fn readmit(state: &State, pod: &str) -> Result<(), AdmissionError> {
    let result = state.change(|state| {
        let mut held = state.view.pods.iter().filter(|((of, _, _), _)| of == pod);
        let result = held.try_for_each(|((_, container, resource), admitted)| {
            state.choose(&Ask { pod, container, resource, count: admitted.ids.len() }).map(drop)
        });
        if result.is_err() {
            state.pod_failed(pod);
        }
        result
    });
    state.save();
    result
}

async fn allocate(state: &State, ask: &Ask<'_>, init: bool) -> Result<Admitted, AdmissionError> {
    let choice = state.change(|state| {
        state.admits(ask.pod)?;
        state.choose(ask)
    })?;
    let (reused, available, needed, mut endpoint) = match choice {
        Choice::Kept(admitted) => return Ok(admitted),
        Choice::Take { reused, available, needed, endpoint } => (reused, available, needed, endpoint),
    };
    let preferred = if needed > 0 && endpoint.offers_preferred {
        prefer(&mut endpoint, &available, &reused, ask.count).await?
    } else {
        BTreeSet::new()
    };
    let by_preference = preferred.intersection(&available).chain(available.difference(&preferred));
    let ids: BTreeSet<String> = reused.iter().chain(by_preference.take(needed)).cloned().collect();
    let ids: Vec<String> = ids.into_iter().collect();
    let container_requests = vec![ContainerAllocateRequest { devices_ids: ids.clone() }];
    let answer = endpoint.client.allocate(AllocateRequest { container_requests }).await?.into_inner();
    let response = answer.container_responses.into_iter().next().ok_or(AdmissionError::NoContainers)?;
    Ok(Admitted { ids, init, response })
}

async fn prefer(
    endpoint: &mut Endpoint,
    available: &BTreeSet<String>,
    required: &BTreeSet<String>,
    size: usize,
) -> Result<BTreeSet<String>, AdmissionError> {
    let request = ContainerPreferredAllocationRequest {
        available_device_i_ds: available.union(required).cloned().collect(),
        must_include_device_i_ds: required.iter().cloned().collect(),
        allocation_size: i32::try_from(size).unwrap(),
    };
    let request = PreferredAllocationRequest { container_requests: vec![request] };
    let answer = endpoint.client.get_preferred_allocation(request).await?.into_inner();
    let first = answer.container_responses.into_iter().next();
    Ok(first.map(|container| container.device_i_ds.into_iter().collect()).unwrap_or_default())
}

impl Inner {
    /// Begins or continues the admission of a pod.
    fn admits(&mut self, pod: &str) -> Result<(), AdmissionError> {
        if self.failed.contains(pod) {
            return Err(AdmissionError::PodFailed);
        }
        if self.reuse.pod != pod {
            self.reuse = Reuse { pod: pod.to_owned(), ..Reuse::default() };
        }
        Ok(())
    }

    fn choose(&self, ask: &Ask<'_>) -> Result<Choice, AdmissionError> {
        let name = || ask.resource.to_owned();
        let key = (ask.pod.to_owned(), ask.container.to_owned(), name());
        let held = self.view.pods.get(&key);
        if let Some(held) = held.filter(|held| held.ids.len() != ask.count) {
            return Err(AdmissionError::Changed(key.0, key.1, key.2, held.ids.len(), ask.count));
        }
        if !self.is_known(ask.resource) {
            return Err(AdmissionError::Unregistered(name()));
        }
        let resource = self.resource(ask.resource);
        if resource.healthy.is_empty() {
            return Err(AdmissionError::NoHealthy(name()));
        }
        if let Some(held) = held {
            let healthy = held.ids.iter().all(|id| resource.healthy.contains(id));
            return if healthy { Ok(Choice::Kept(held.clone())) } else { Err(AdmissionError::NoLongerHealthy(name())) };
        }
        let offered = self.reuse.devices.get(ask.resource);
        let reused: BTreeSet<String> = offered.into_iter().flatten().take(ask.count).cloned().collect();
        let needed = ask.count - reused.len();
        let available = &resource.healthy - &self.in_use(ask.resource);
        if available.len() < needed {
            return Err(AdmissionError::TooFew { resource: name(), requested: needed, available: available.len() });
        }
        let running = self.endpoints.get(ask.resource).filter(|endpoint| !endpoint.stopped);
        let endpoint = running.cloned().ok_or(AdmissionError::Unregistered(name()))?;
        Ok(Choice::Take { reused, available, needed, endpoint })
    }

    /// Stores a container's devices. Those of an init container are offered again to later containers.
    fn admitted(&mut self, ask: &Ask<'_>, admitted: Admitted) {
        let offered = self.reuse.devices.entry(ask.resource.to_owned()).or_default();
        for id in &admitted.ids {
            if admitted.init {
                offered.insert(id.clone());
            } else {
                offered.remove(id);
            }
        }
        let key = (ask.pod.to_owned(), ask.container.to_owned(), ask.resource.to_owned());
        self.view.pods.insert(key, admitted);
    }
}
