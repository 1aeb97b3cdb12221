//! The gRPC contracts of `proto/` as generated Rust code, and gRPC over Unix sockets. Only `akri-kubelet` and `akri-remote`
//! convert these types; no other crate of the product sees them.

mod codec;
pub mod unix;

pub use self::generated::{deviceplugin, discovery, podresources};

#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::restriction,
    reason = "generated code; the contract is documented in proto/"
)]
mod generated {
    /// Remote discovery handlers and their registration: package `v0` of `proto/discovery.proto`.
    pub mod discovery {
        tonic::include_proto!("v0");
    }

    /// The kubelet's device plugins: package `v1beta1` of `proto/deviceplugin.proto`.
    pub mod deviceplugin {
        tonic::include_proto!("v1beta1");
    }

    /// The kubelet's list of pods and their devices: package `v1` of `proto/podresources.proto`.
    pub mod podresources {
        tonic::include_proto!("v1");
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::{deviceplugin, discovery, podresources};

    /// Compares messages with byte strings written by hand from the field numbers of the contract: tag, length, text.
    #[test]
    fn messages_match_their_wire_contracts() {
        let text = str::to_owned;
        let register = deviceplugin::RegisterRequest {
            version: text("v"),
            endpoint: text("e"),
            resource_name: text("r"),
            options: Some(deviceplugin::DevicePluginOptions {
                pre_start_required: true,
                get_preferred_allocation_available: true,
            }),
        };
        assert_eq!(register.encode_to_vec(), b"\x0a\x01v\x12\x01e\x1a\x01r\x22\x04\x08\x01\x10\x01");

        let allocated = deviceplugin::ContainerAllocateResponse {
            envs: [(text("k"), text("v"))].into(),
            mounts: vec![deviceplugin::Mount { container_path: text("c"), host_path: text("h"), read_only: true }],
            devices: vec![deviceplugin::DeviceSpec {
                container_path: text("c"),
                host_path: text("h"),
                permissions: text("r"),
            }],
            annotations: [(text("k"), text("v"))].into(),
            cdi_devices: vec![deviceplugin::CdiDevice { name: text("n") }],
        };
        let wire = [
            &b"\x0a\x06\x0a\x01k\x12\x01v"[..],
            b"\x12\x08\x0a\x01c\x12\x01h\x18\x01",
            b"\x1a\x09\x0a\x01c\x12\x01h\x1a\x01r",
            b"\x22\x06\x0a\x01k\x12\x01v",
            b"\x2a\x03\x0a\x01n",
        ];
        assert_eq!(allocated.encode_to_vec(), wire.concat());

        let prefer = deviceplugin::ContainerPreferredAllocationRequest {
            available_device_i_ds: vec![text("a")],
            must_include_device_i_ds: vec![text("m")],
            allocation_size: 1,
        };
        assert_eq!(prefer.encode_to_vec(), b"\x0a\x01a\x12\x01m\x18\x01");

        let discover = discovery::DiscoverRequest {
            discovery_details: text("d"),
            discovery_properties: [(text("k"), discovery::ByteData { vec: Some(vec![]) })].into(),
        };
        assert_eq!(discover.encode_to_vec(), b"\x0a\x01d\x12\x07\x0a\x01k\x12\x02\x0a\x00");
        let handler = discovery::RegisterDiscoveryHandlerRequest {
            name: text("n"),
            endpoint: text("e"),
            endpoint_type: discovery::register_discovery_handler_request::EndpointType::Network.into(),
            shared: true,
        };
        assert_eq!(handler.encode_to_vec(), b"\x0a\x01n\x12\x01e\x18\x01\x20\x01");

        let container = podresources::ContainerResources {
            name: text("c"),
            devices: vec![podresources::ContainerDevices {
                resource_name: text("r"),
                device_ids: vec![text("d")],
                topology: None,
            }],
            ..Default::default()
        };
        let pod = podresources::PodResources { name: text("p"), namespace: text("n"), containers: vec![container] };
        let wire = b"\x0a\x01p\x12\x01n\x1a\x0b\x0a\x01c\x12\x06\x0a\x01r\x12\x01d";
        assert_eq!(pod.encode_to_vec(), wire);
    }
}
