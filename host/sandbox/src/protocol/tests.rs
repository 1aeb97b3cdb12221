//! Messages survive encoding, and what is no message is refused.

use std::time::Duration;

use akri_model::device::{AbsenceMeaning, Device, DeviceSet, DeviceSpec, Mount, Note};
use akri_model::discovery::{Problem, RoundError};
use akri_model::grant::{Grants, Limits};
use akri_model::left_out::LeftOut;
use akri_model::property::Secret;
use proptest::collection::{btree_map, btree_set, vec};
use proptest::prelude::*;

use super::*;

fn device() -> impl Strategy<Value = Device> {
    let mount = (".*", ".*", any::<bool>()).prop_map(|(container_path, host_path, read_only)| Mount {
        container_path,
        host_path,
        read_only,
    });
    let spec = (".*", ".*", ".*").prop_map(|(container_path, host_path, permissions)| DeviceSpec {
        container_path,
        host_path,
        permissions,
    });
    (".*", ".*", btree_map(".*", ".*", 0..4), vec(mount, 0..3), vec(spec, 0..3)).prop_map(
        |(id, origin, properties, mounts, device_specs)| Device { id, origin, properties, mounts, device_specs },
    )
}

fn set() -> impl Strategy<Value = DeviceSet> {
    let note = (".*", ".*", ".*").prop_map(|(origin, reason, message)| Note { origin, reason, message });
    let sets = (vec(device(), 0..5), btree_set(".*", 0..3), btree_set(".*", 0..3), vec(note, 0..3));
    let left_out = |name: &str| {
        let mut left_out = LeftOut::default();
        left_out.add("a filter", name);
        left_out
    };
    (sets, any::<bool>(), any::<u64>()).prop_map(move |((devices, kept, withheld, notes), are_kept, count)| DeviceSet {
        left_out: left_out(&count.to_string()),
        devices,
        kept,
        withheld,
        notes,
        absence: if are_kept { AbsenceMeaning::Kept(Default::default()) } else { AbsenceMeaning::Missing },
        notes_dropped: count,
        secrets_revealed: count / 2,
        memory_bytes: count / 3,
    })
}

fn arguments() -> impl Strategy<Value = Arguments> {
    let values = || btree_map(".*", vec(any::<u8>(), 0..9), 0..3);
    let maps = (values(), values(), values());
    (".*", ".*", proptest::option::of(".*"), maps, any::<[u8; 4]>(), any::<u16>(), any::<u64>()).prop_map(
        |(subject, details, details_json, maps, address, port, rates)| {
            let networks = vec![ipnet::IpNet::new(address.into(), address[0] % 33).unwrap()];
            let to = akri_model::grant::Destinations { networks, ports: vec![port..=u16::MAX] };
            let grants = Grants { tcp: vec![to], names: vec![subject.clone()], ..Grants::default() };
            Arguments {
                subject,
                details,
                details_json,
                properties: maps.0,
                secrets: maps.1.into_iter().map(|(name, value)| (name, Secret::new(value))).collect(),
                cache: maps.2.into(),
                grants,
                limits: Limits { devices: port.into(), ..Limits::default() },
                rates,
            }
        },
    )
}

/// Decodes the devices of payloads.
fn received(reply: &Reply, payloads: &[&[u8]]) -> io::Result<Vec<Device>> {
    let mut devices = ReceivedDevices::default();
    for mut rest in payloads.iter().copied() {
        while !rest.is_empty() {
            rest = devices.add_some(rest)?;
        }
    }
    devices.check(reply)?;
    Ok(devices.devices)
}

fn reply(devices: usize, head: DeviceSet) -> Reply {
    Reply::Discovered { call: 1, devices, result: Ok(Box::new(head)), cache: None, ticks: 3 }
}

proptest! {
    #[test]
    fn requests_survive_encoding(arguments in arguments(), call: u64, payload in vec(any::<u8>(), 0..99)) {
        let request = Request::Call { call, component: 1, export: Export::Discover, arguments: Box::new(arguments) };
        let frame = encode(&request, &payload).unwrap();
        let (length, body) = frame.split_at(LENGTH);
        prop_assert_eq!(u32::from_le_bytes(length.try_into().unwrap()) as usize, body.len());
        prop_assert!(decode::<Request>(body).unwrap() == (request, payload.as_slice()));
    }

    #[test]
    fn device_sets_survive_encoding(set in set(), call: u64, part: prop::sample::Index) {
        let head = DeviceSet { devices: Vec::new(), ..set.clone() };
        let answer = reply(set.devices.len(), head);
        let (earlier, last) = set.devices.split_at(part.index(set.devices.len() + 1));
        let part = encode_devices(&Reply::Devices { call }, earlier).unwrap();
        let frame = encode_devices(&answer, last).unwrap();
        let (decoded, earlier) = decode::<Reply>(&part[LENGTH..]).unwrap();
        prop_assert_eq!(decoded, Reply::Devices { call });
        let (decoded, payload) = decode::<Reply>(&frame[LENGTH..]).unwrap();
        prop_assert_eq!(&decoded, &answer);
        prop_assert_eq!(received(&decoded, &[payload]).is_ok(), earlier.is_empty());
        prop_assert_eq!(received(&decoded, &[earlier, payload]).unwrap(), set.devices);
    }

    #[test] // threat 22
    fn arbitrary_bytes_are_decoded_or_refused(bytes in vec(any::<u8>(), 0..512)) {
        let _ = decode::<Request>(&bytes);
        if let Ok((reply, payload)) = decode::<Reply>(&bytes) {
            let _ = received(&reply, &[payload]);
        }
    }

    #[test]
    fn damaged_frames_are_decoded_or_refused(set in set(), at: prop::sample::Index, byte: u8) {
        let answer = reply(set.devices.len(), DeviceSet::default());
        let mut frame = encode_devices(&answer, &set.devices).unwrap().split_off(LENGTH);
        let at = at.index(frame.len());
        frame[at] = byte;
        if let Ok((reply, payload)) = decode::<Reply>(&frame) {
            let _ = received(&reply, &[payload]);
        }
    }
}

#[test] // threat 22
fn elements_are_bounded_before_there_is_memory_for_them() {
    for (count, is_good) in [(1 << 20, true), (3 << 20, false)] {
        let frame = encode(&vec![String::new(); count], &[]).unwrap();
        assert_eq!(decode::<Vec<String>>(&frame[LENGTH..]).is_ok(), is_good, "{count}");
    }
    let forged = encode(&(u64::MAX, 0), &[]).unwrap();
    assert!(decode::<Vec<String>>(&forged[LENGTH..]).is_err(), "a length that nothing follows");
    let many = |count: i32| Device {
        properties: (0..count).map(|number| (number.to_string(), String::new())).collect(),
        ..Device::default()
    };
    let payload = encode_devices(&(), &[many(700_000)]).unwrap();
    let payload = &payload[LENGTH..];
    assert!(received(&reply(1, DeviceSet::default()), &[payload]).is_ok());
    assert!(received(&reply(3, DeviceSet::default()), &[payload; 3]).is_err(), "those of all payloads together");
}

#[test]
fn errors_survive_encoding() {
    let text = || "why".to_owned();
    for error in [
        RoundError::InvalidDetails(vec![Problem { path: text(), reason: text(), message: text() }]),
        RoundError::NotGranted(text()),
        RoundError::Unavailable(text()),
        RoundError::Trapped(text()),
        RoundError::DeadlineExceeded(Duration::from_millis(1)),
        RoundError::LimitExceeded(text()),
        RoundError::InvalidResult(text()),
    ] {
        let reply = Reply::Validated { call: 1, result: Err(error), ticks: 0 };
        let frame = encode(&reply, &[]).unwrap();
        assert_eq!(decode::<Reply>(&frame[LENGTH..]).unwrap().0, reply);
    }
}
