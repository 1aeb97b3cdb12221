//! Messages survive encoding, and what is no message is refused.

use std::collections::BTreeMap;

use akri_model::device::{AbsenceMeaning, Device, DeviceSet, DeviceSpec, Mount, Note};
use akri_model::grant::{Grants, Limits};
use proptest::collection::{btree_map, btree_set, vec};
use proptest::prelude::*;

use super::device_set::DEVICES;
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
    (sets, any::<bool>(), any::<u64>()).prop_map(|((devices, kept, withheld, notes), are_kept, count)| DeviceSet {
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
                secrets: maps.1,
                cache: maps.2.into(),
                grants,
                limits: Limits { devices: port.into(), ..Limits::default() },
                rates,
            }
        },
    )
}

/// Decodes the devices of a set.
fn received(found: &DeviceSetHead, payloads: &[&[u8]]) -> Result<DeviceSet, ProtocolError> {
    let mut devices = ReceivedDevices::default();
    for mut rest in payloads.iter().copied() {
        while !rest.is_empty() {
            rest = devices.add_some(rest)?;
        }
    }
    devices.check(&reply(found))?;
    Ok(devices.into_set(found.clone()))
}

fn reply(found: &DeviceSetHead) -> Reply {
    Reply::Discovered { call: 1, result: Ok(Box::new(found.clone())), cache: None, ticks: 3 }
}

proptest! {
    #[test]
    fn requests_survive_encoding(arguments in arguments(), call: u64, payload in vec(any::<u8>(), 0..99)) {
        let request = Request::Discover { call, component: 1, arguments: Box::new(arguments) };
        let frame = encode(&request, &payload).unwrap();
        let (length, body) = frame.split_at(LENGTH);
        prop_assert_eq!(u32::from_le_bytes(length.try_into().unwrap()) as usize, body.len());
        prop_assert_eq!(decode::<Request>(body).unwrap(), (request, payload.as_slice()));
    }

    #[test]
    fn device_sets_survive_encoding(set in set(), call: u64, part: prop::sample::Index) {
        let (found, devices) = split(set.clone());
        let (earlier, last) = devices.split_at(part.index(devices.len() + 1));
        let part = encode_devices(&Reply::Devices { call }, earlier).unwrap();
        let frame = encode_devices(&reply(&found), last).unwrap();
        let (decoded, earlier) = decode::<Reply>(&part[LENGTH..]).unwrap();
        prop_assert_eq!(decoded, Reply::Devices { call });
        let (decoded, payload) = decode::<Reply>(&frame[LENGTH..]).unwrap();
        let Reply::Discovered { result: Ok(found), .. } = decoded else { panic!("{decoded:?}") };
        prop_assert_eq!(received(&found, &[payload]).is_ok(), earlier.is_empty());
        prop_assert_eq!(received(&found, &[earlier, payload]).unwrap(), set);
    }

    #[test] // threat 22
    fn arbitrary_bytes_are_decoded_or_refused(bytes in vec(any::<u8>(), 0..512)) {
        let _ = decode::<Request>(&bytes);
        if let Ok((Reply::Discovered { result: Ok(found), .. }, payload)) = decode::<Reply>(&bytes) {
            let _ = received(&found, &[payload]);
        }
    }

    #[test]
    fn damaged_frames_are_decoded_or_refused(set in set(), at: prop::sample::Index, byte: u8) {
        let (found, devices) = split(set);
        let mut frame = encode_devices(&reply(&found), &devices).unwrap().split_off(LENGTH);
        let at = at.index(frame.len());
        frame[at] = byte;
        if let Ok((Reply::Discovered { result: Ok(found), .. }, payload)) = decode::<Reply>(&frame) {
            let _ = received(&found, &[payload]);
        }
    }
}

#[test] // threat 22
fn lists_are_bounded_before_there_is_memory_for_them() {
    let frame = encode(&vec![String::new(); 3], &[]).unwrap();
    assert!(decode::<Bounded<String, 3>>(&frame[LENGTH..]).is_ok());
    assert!(decode::<Bounded<String, 2>>(&frame[LENGTH..]).is_err());
    for (entries, is_good) in [(4096, true), (4097, false)] {
        let entries = (0..entries).map(|number: i32| (number.to_string(), Vec::new())).collect::<BTreeMap<_, _>>();
        let frame = encode(&CacheEntries(entries.into()), &[]).unwrap();
        assert_eq!(decode::<CacheEntries>(&frame[LENGTH..]).is_ok(), is_good);
    }
    let many = Device {
        properties: (0..1025).map(|number| (number.to_string(), String::new())).collect(),
        ..Device::default()
    };
    let of = |devices: u32| DeviceSetHead { devices, ..DeviceSetHead::default() };
    let frame = encode_devices(&(), &[many]).unwrap();
    assert!(received(&of(1), &[&frame[LENGTH..]]).is_err());
    let payload = encode_devices(&(), &vec![Device::default(); DEVICES + 1]).unwrap();
    assert!(received(&of(65_537), &[&payload[LENGTH..]]).is_err());
    let most = &payload[LENGTH..payload.len() - 5];
    assert!(received(&of(65_535), &[most]).is_err());
    assert!(received(&of(65_536), &[most]).is_ok());
}
