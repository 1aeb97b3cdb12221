//! What stories are made with.

pub mod kubelet;
pub mod node;
pub mod skip;
pub mod udev;
pub mod zram;
