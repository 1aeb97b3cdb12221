//! The time from devices to registered resources: the real agent, a real component, a kubelet that dials back.

use crate::measure::{Samples, Table};
use crate::node::{Idle, Scope};

pub(crate) async fn measure() -> Table {
    let mut table = Table::new("From a Configuration written to all of its devices registered with the kubelet");
    for (devices, scope, count, beside) in [
        (200, Scope::Local, 5, "target: ≤ 1 s; upstream Akri: 200.8 s from the devices found"),
        (200, Scope::Shared, 5, ""),
        (1000, Scope::Local, 3, "target: ≤ 5 s"),
    ] {
        let mut samples = Vec::new();
        for _ in 0..count {
            samples.push(Idle::start(scope).await.register(devices).await);
        }
        table.row(format!("{devices} {} devices", format!("{scope:?}").to_lowercase()), &Samples::new(samples), beside);
    }
    table
}
