//! Conversion between the model and `proto/discovery.proto`. A message is counted before it is decoded: a few bytes can
//! encode a large message.

use std::collections::HashSet;
use std::fmt::Display;

use akri_grpc::discovery as wire;
use akri_model::device::{Device, DeviceSet, DeviceSpec, Mount};
use akri_model::discovery::{Problem, RoundError};
use akri_model::grant::Limits;
use akri_model::property::Resolved;
use akri_model::secret_scanner::SecretScanner;
use akri_model::text::clean;
use prost::Message as _;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use tonic::{Code, Status};

/// Field numbers of repeated fields of a Device.
const REPEATED: [(u32, &str); 3] = [(2, "properties"), (3, "mounts"), (4, "device specs")];

/// The problem of a message that ends in the middle of a field.
const CUT_SHORT: &str = "it ends in the middle of a field";
/// Maximum length of a handler's error message that is shown, in bytes.
const SHOWN: usize = 1024;

/// Returns the request for a handler. This copy of the secrets lives until the request is sent.
pub(super) fn request(details: &str, properties: &Resolved) -> wire::DiscoverRequest {
    let plain = properties.properties.iter().map(|(name, value)| (name, value.clone()));
    let secret = properties.secrets.iter().map(|(name, value)| (name, value.reveal().to_vec()));
    let properties = plain.chain(secret).map(|(name, value)| (name.clone(), wire::ByteData { vec: Some(value) }));
    wire::DiscoverRequest { discovery_details: details.to_owned(), discovery_properties: properties.collect() }
}

/// Returns the devices of a message, each checked against the limits. The first of two devices with one id wins.
pub(super) fn devices(message: &[u8], limits: &Limits) -> Result<DeviceSet, RoundError> {
    count(message, limits)?;
    let message = wire::DiscoverResponse::decode(message).map_err(malformed)?;
    let mut ids = HashSet::with_capacity(message.devices.len());
    let mut devices = Vec::with_capacity(message.devices.len());
    for device in message.devices.into_iter().map(device) {
        check(&device, limits).map_err(|what| over(format!("device '{}': {what}", clean(&device.id, 64))))?;
        if ids.insert(device.id.clone()) {
            devices.push(device);
        }
    }
    Ok(DeviceSet { devices, ..DeviceSet::default() })
}

fn over(what: String) -> RoundError {
    RoundError::LimitExceeded(what)
}

/// Counts devices and repeated fields without decoding them.
fn count(message: &[u8], limits: &Limits) -> Result<(), RoundError> {
    let mut devices = 0;
    for field in Fields(message) {
        let (1, device) = field? else { continue };
        devices += 1;
        for (number, what) in REPEATED {
            within(&format!("{what} of a device"), count_fields(device, number)?, limits.properties)?;
        }
    }
    within("devices", devices, limits.devices)
}

fn within(what: &str, count: usize, max: usize) -> Result<(), RoundError> {
    if count <= max { Ok(()) } else { Err(over(format!("{what}: {count} (at most {max})"))) }
}

fn count_fields(message: &[u8], wanted: u32) -> Result<usize, RoundError> {
    Fields(message).try_fold(0, |count, field| Ok(count + usize::from(field?.0 == wanted)))
}

fn malformed(error: impl Display) -> RoundError {
    RoundError::Unavailable(format!("a message that can't be decoded: {error}"))
}

/// An iterator over the length-delimited fields of an encoded message: number and content, up to the first error.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn read(&mut self) -> Result<Option<(u32, &'a [u8])>, RoundError> {
        while !self.0.is_empty() {
            let (number, wire_type) = decode_key(&mut self.0).map_err(malformed)?;
            if wire_type != WireType::LengthDelimited {
                skip_field(wire_type, number, &mut self.0, DecodeContext::default()).map_err(malformed)?;
                continue;
            }
            let length = usize::try_from(decode_varint(&mut self.0).map_err(malformed)?).unwrap_or(usize::MAX);
            let (content, rest) = self.0.split_at_checked(length).ok_or_else(|| malformed(CUT_SHORT))?;
            self.0 = rest;
            return Ok(Some((number, content)));
        }
        Ok(None)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, &'a [u8]), RoundError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().inspect_err(|_| self.0 = &[]).transpose()
    }
}

/// Checks a device. Its repeated fields are already counted.
fn check(device: &Device, limits: &Limits) -> Result<(), String> {
    if device.id.is_empty() {
        return Err("its id is empty".to_owned());
    }
    device.check(limits)
}

fn device(device: wire::Device) -> Device {
    let mount = |wire::Mount { container_path, host_path, read_only }| Mount { container_path, host_path, read_only };
    let spec = |spec: wire::DeviceSpec| DeviceSpec {
        container_path: spec.container_path,
        host_path: spec.host_path,
        permissions: spec.permissions,
    };
    Device {
        id: device.id,
        origin: String::new(),
        properties: device.properties.into_iter().collect(),
        mounts: device.mounts.into_iter().map(mount).collect(),
        device_specs: device.device_specs.into_iter().map(spec).collect(),
    }
}

/// Returns the reason why a handler's stream ended, with secrets removed. INVALID_ARGUMENT means invalid details; every
/// other code is temporary.
pub(super) fn failure(status: &Status, scanner: &SecretScanner) -> RoundError {
    let printed = clean(&scanner.hide(status.message().to_owned()), SHOWN);
    match status.code() {
        Code::InvalidArgument => {
            let message = if printed.is_empty() { "the handler gave no reason".to_owned() } else { printed };
            let reason = "InvalidDetails".to_owned();
            RoundError::InvalidDetails(vec![Problem { path: String::new(), reason, message }])
        }
        Code::OutOfRange if printed.contains("message length too large") => RoundError::LimitExceeded(printed),
        code => RoundError::Unavailable(format!("{code:?}: {printed}")),
    }
}

#[cfg(test)]
mod tests {
    use akri_model::property::Secret;

    use super::*;

    fn sent(id: &str) -> wire::Device {
        wire::Device { id: id.to_owned(), ..wire::Device::default() }
    }

    fn read(devices: Vec<wire::Device>) -> Result<DeviceSet, RoundError> {
        super::devices(&wire::DiscoverResponse { devices }.encode_to_vec(), &Limits::default())
    }

    fn refused(change: impl FnOnce(&mut wire::Device)) -> String {
        let mut changed = sent("d");
        change(&mut changed);
        read(vec![sent("first"), changed]).unwrap_err().to_string()
    }

    #[test]
    fn device_is_converted_field_by_field() {
        let mount = wire::Mount { container_path: "/m".into(), host_path: "/dev/m".into(), read_only: true };
        let spec =
            wire::DeviceSpec { container_path: "/dev/x".into(), host_path: "/dev/y".into(), permissions: "rw".into() };
        let message = wire::Device {
            properties: [("K".to_owned(), "v".to_owned())].into(),
            mounts: vec![mount],
            device_specs: vec![spec],
            ..sent("d")
        };
        let found = read(vec![message]).unwrap().devices.remove(0);
        let mount = Mount { container_path: "/m".into(), host_path: "/dev/m".into(), read_only: true };
        let spec = DeviceSpec { container_path: "/dev/x".into(), host_path: "/dev/y".into(), permissions: "rw".into() };
        let expected = Device {
            id: "d".into(),
            origin: String::new(),
            properties: [("K".to_owned(), "v".to_owned())].into(),
            mounts: vec![mount],
            device_specs: vec![spec],
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn first_of_two_devices_with_one_id_wins() {
        let mut second = sent("d");
        second.properties.insert("K".into(), "v".into());
        assert_eq!(read(vec![sent("d"), second, sent("e")]).unwrap().devices.len(), 2);
        assert!(read(vec![sent("d"), sent("d")]).unwrap().devices[0].properties.is_empty());
    }

    #[test]
    fn values_over_a_limit_are_refused_by_name() {
        let long = "x".repeat(4097);
        let mount = || wire::Mount { host_path: long.clone(), ..wire::Mount::default() };
        let spec = || wire::DeviceSpec { permissions: long.clone(), ..wire::DeviceSpec::default() };
        let property = |n: u32| (n.to_string(), String::new());
        assert!(refused(|d| d.id = String::new()).contains("its id is empty"));
        assert!(refused(|d| d.id = long.clone()).contains("its id: 4097 bytes"));
        assert!(refused(|d| d.properties = (0..65).map(property).collect()).contains("properties of a device: 65"));
        assert!(refused(|d| d.properties = [(long.clone(), String::new())].into()).contains("a property's name"));
        assert!(refused(|d| d.mounts = vec![mount(); 65]).contains("mounts of a device: 65"));
        assert!(refused(|d| d.mounts = vec![mount()]).contains("a mount's path"));
        assert!(refused(|d| d.device_specs = vec![spec(); 65]).contains("device specs of a device: 65"));
        assert!(refused(|d| d.device_specs = vec![spec()]).contains("permissions"));
        let many = read((0..100_000).map(|n| sent(&n.to_string())).collect()).unwrap_err();
        assert_eq!(many, RoundError::LimitExceeded("devices: 100000 (at most 4096)".to_owned()));
        assert_eq!(read((0..4096).map(|n| sent(&n.to_string())).collect()).unwrap().devices.len(), 4096);
    }

    /// Each element takes two bytes on the wire and about a hundred in endpoint_file.
    #[test]
    fn messages_are_counted_before_they_are_decoded() {
        let empty_devices = [0x0a, 0].repeat(1 << 20);
        let error = super::devices(&empty_devices, &Limits::default()).unwrap_err();
        assert_eq!(error, RoundError::LimitExceeded("devices: 1048576 (at most 4096)".to_owned()));
        let empty_mounts = [0x1a, 0].repeat(1 << 20);
        let mut message = vec![0x0a, 0x80, 0x80, 0x80, 0x01];
        message.extend(empty_mounts);
        let error = super::devices(&message, &Limits::default()).unwrap_err();
        assert_eq!(error, RoundError::LimitExceeded("mounts of a device: 1048576 (at most 64)".to_owned()));
    }

    #[test]
    fn malformed_messages_are_errors_and_unknown_fields_are_not() {
        for bytes in [&[0x0a][..], &[0x0a, 5, 1], &[0xff; 20], &[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 1], &[0x0b, 0x0b]]
        {
            let error = super::devices(bytes, &Limits::default()).unwrap_err();
            assert!(matches!(error, RoundError::Unavailable(_)), "{bytes:?} {error}");
        }
        let unknown = [&[0x50, 1][..], &[0x5a, 1, 0], &[0x0a, 3, 0x0a, 1, b'd']].concat();
        assert_eq!(super::devices(&unknown, &Limits::default()).unwrap().devices[0].id, "d");
        assert!(super::devices(&[0x0a, 3, 0x0a, 1, 0xff], &Limits::default()).is_err(), "not UTF-8");
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_cause_no_panic(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
            let _ = super::devices(&bytes, &Limits::default()); // only must not panic
        }
    }

    #[test]
    fn plain_and_secret_values_are_sent_alike() {
        let resolved = Resolved {
            properties: [("a".to_owned(), b"1".to_vec())].into(),
            secrets: [("b".to_owned(), Secret::new(vec![0xff]))].into(),
        };
        let asked = request("details", &resolved);
        assert_eq!(asked.discovery_details, "details");
        assert_eq!(asked.discovery_properties["a"].vec.as_deref(), Some(&b"1"[..]));
        assert_eq!(asked.discovery_properties["b"].vec.as_deref(), Some(&[0xff][..]));
    }

    #[test]
    fn status_is_shown_on_one_line() {
        let expected_text = |status: Status| failure(&status, &SecretScanner::default()).to_string();
        assert_eq!(expected_text(Status::invalid_argument("no\nrule\x1b")), "invalid discoveryDetails: no rule ");
        assert_eq!(expected_text(Status::invalid_argument("")), "invalid discoveryDetails: the handler gave no reason");
        assert_eq!(
            expected_text(Status::unimplemented("no such method")),
            "unavailable: Unimplemented: no such method"
        );
        let large = "Error, decoded message length too large: found 5 bytes, the limit is: 4 bytes";
        assert_eq!(expected_text(Status::out_of_range(large)), format!("limit exceeded: {large}"));
        assert_eq!(expected_text(Status::internal("x".repeat(5000))).len(), "unavailable: Internal: ".len() + SHOWN);
    }

    #[test]
    fn secret_in_a_status_is_hidden_entirely() {
        let scanner = SecretScanner::all(&[("password".to_owned(), Secret::new(b"hunter2".to_vec()))].into());
        for before in ["", &"x".repeat(SHOWN - 4)] {
            for status in [Status::unavailable, Status::invalid_argument] {
                let expected_text = failure(&status(format!("{before}hunter2 is wrong")), &scanner).to_string();
                assert!(
                    expected_text.ends_with("contains a secret)") && !expected_text.contains("hunt"),
                    "{expected_text}"
                );
            }
        }
    }
}
