//! A real Kubernetes for stories: etcd, API server, controller manager and scheduler, and two nodes with containerd and
//! kubelet, each on a machine of its own (`machine.rs`) in a network that no packet leaves. `tests/cluster/build.sh` makes the
//! programs.
//!
//! The stories of a run share one cluster, each in a namespace of its own. The first story starts it, and it ends with the
//! run, however that ends. One that was started by hand, with `make cluster`, is used and left alone, and so is one that the
//! environment variable KUBECONFIG names.

mod certificates;
mod cgroup;
mod component;
mod control_plane;
mod forward;
mod image;
mod layout;
mod lifecycle;
mod machine;
mod ready;
mod story;
mod worker;

pub use component::Component;
pub use control_plane::ControlPlane;
pub use image::{AKRI, BUSYBOX};
pub use lifecycle::{Cluster, Extent, Use};
pub use story::{Story, is_elsewhere, is_ready, phase, wait_for};
pub use worker::Worker;
