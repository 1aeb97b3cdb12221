//! A real Kubernetes cluster for stories: etcd, API server, controller manager and scheduler, and two nodes with
//! containerd and kubelet, each on a machine of its own (`machine.rs`) in an isolated network. `tests/cluster/build.sh`
//! builds the programs; AKRI_KUBERNETES names a directory with those of another release.
//!
//! The stories of a run share one cluster, each with its own namespace. The first story starts it, and it ends with the
//! run; AKRI_CLUSTER names another one for a run beside it. A cluster started by `make cluster`, or named by KUBECONFIG, is used and left running.

mod brownout;
mod certificates;
mod cgroup;
mod component;
mod control_plane;
mod forward;
mod image;
mod installation;
mod layout;
mod lifecycle;
mod machine;
mod overload;
mod programs;
mod ready;
mod story;
mod worker;

pub use brownout::Brownout;
pub use component::Component;
pub use control_plane::ControlPlane;
pub use image::{AKRI, BUSYBOX};
pub use installation::{Installation, NAMESPACE, helm, program, render};
pub use lifecycle::{Cluster, Extent, Use};
pub use overload::Overload;
pub use programs::current as kubernetes_version;
pub use story::{Story, is_elsewhere, is_ready, phase, wait_for};
pub use worker::Worker;
