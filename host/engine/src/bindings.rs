//! The WIT package `akri:discovery` as Rust types; they stay in this crate.
#![allow(missing_docs, unreachable_pub, clippy::all, clippy::restriction, reason = "made by a macro")]

wasmtime::component::bindgen!({
    path: "../../wit",
    world: "discovery-handler",
    imports: {
        "akri:discovery/udev.[method]query.run": async | trappable,
        "akri:discovery/multicast.[method]conversation.send": async | trappable,
        "akri:discovery/multicast.[method]conversation.receive": async | trappable,
        default: trappable,
    },
    exports: { default: async },
    with: {
        "akri:discovery/secrets.secret": crate::capabilities::secrets::Held,
        "akri:discovery/multicast.conversation": akri_node::multicast::Conversation,
        "akri:discovery/udev.query": akri_node::sysfs::Query,
        "akri:discovery/udev.snapshot": crate::capabilities::udev::Pages,
    },
});

pub(crate) use self::akri::discovery::{cache, logging, properties, round};
pub use self::akri::discovery::{multicast, secrets, types, udev};
pub(crate) use self::exports::akri::discovery::handler;
