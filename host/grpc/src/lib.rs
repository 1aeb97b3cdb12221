//! The gRPC contracts of `proto/` as generated Rust code, and nothing else. Only the `convert` files of other crates
//! and the edges next to them touch these types.

macro_rules! generated {
    ($(#[$doc:meta])* $name:ident, $package:literal) => {
        $(#[$doc])*
        #[allow(
            missing_docs,
            unreachable_pub,
            clippy::all,
            clippy::unwrap_used,
            clippy::expect_used,
            clippy::panic,
            clippy::indexing_slicing,
            clippy::allow_attributes_without_reason,
            reason = "generated code; the contract is documented in proto/"
        )]
        pub mod $name {
            tonic::include_proto!($package);
        }
    };
}

generated!(
    /// Remote discovery handlers and their registration: package `v0` of `proto/discovery.proto`.
    discovery,
    "v0"
);
generated!(
    /// The kubelet's device plugins: package `v1beta1` of `proto/deviceplugin.proto`.
    deviceplugin,
    "v1beta1"
);
generated!(
    /// Which pod uses which device: package `v1` of `proto/podresources.proto`.
    podresources,
    "v1"
);
