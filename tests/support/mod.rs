//! What stories are made with.

pub mod kubelet;
pub mod node;
