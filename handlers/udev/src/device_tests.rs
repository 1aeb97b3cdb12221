use super::*;
use crate::{fixture::*, record::Record};

fn find(rules: &[&str], group_recursive: bool, resource: Option<&str>) -> Vec<Device> {
    let json = serde_json::json!({ "udevRules": rules, "groupRecursive": group_recursive }).to_string();
    let resource = resource.and_then(|name| ResourceName::parse(name.as_bytes()));
    devices(&Details::parse(Some(&json)).unwrap(), &snapshot(), &Extras { resource, vfio: false })
}

fn device(id: &str, properties: &[(&str, &str)], nodes: &[&str]) -> Device {
    let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    let properties = [pair(&("UDEV_DEVPATH", id))].into_iter().chain(properties.iter().map(pair)).collect();
    let nodes = nodes.iter().map(|node| (*node).into()).collect();
    Device { id: id.into(), properties, nodes, vfio_nodes: Vec::new() }
}

#[test]
fn device_has_its_path_and_node() {
    let null = device(NULL, &[("UDEV_DEVNODE", "/dev/null")], &["/dev/null"]);
    assert_eq!(find(&[r#"KERNEL=="null""#], false, None), [null]);
}

#[test]
fn no_rules_find_nothing() {
    assert_eq!(find(&[], false, None), []);
    assert_eq!(find(&[], true, None), []);
}

#[test]
fn device_matching_several_rules_is_found_once() {
    let found =
        find(&[r#"KERNEL=="video*""#, r#"KERNEL=="null""#, r#"KERNEL=="video0""#, r#"KERNEL=="x""#], false, None);
    assert_eq!(found.iter().map(|device| device.id.as_str()).collect::<Vec<_>>(), [VIDEO0, VIDEO1, NULL]);
}

#[test]
fn device_without_node_uses_its_nearest_ancestor_with_one() {
    let camera = device(CAMERA, &[("UDEV_DEVNODE", "/dev/bus/usb/001/002")], &["/dev/bus/usb/001/002"]);
    assert_eq!(find(&[r#"DRIVER=="uvcvideo""#], false, None), std::slice::from_ref(&camera));
    let both = find(&[r#"DRIVER=="uvcvideo""#, r#"KERNEL=="1-1""#], false, None);
    assert_eq!(both, [camera], "the interface and the camera are the same device");
}

#[test]
fn device_without_any_node_has_its_path_alone() {
    assert_eq!(find(&[r#"KERNEL=="lo""#], false, None), [device(LOOPBACK, &[], &[])]);
    assert_eq!(find(&[r#"SUBSYSTEM=="pci""#], true, None), [device(CONTROLLER, &[], &[])]);
}

#[test]
fn only_devices_that_match_the_query_are_found() {
    let ancestors_only: Snapshot =
        snapshot().lineage(6).cloned().map(|record| Record { matched: false, parent: None, ..record }).collect();
    let details = Details::parse(Some(r#"{"udevRules": ["SUBSYSTEM==\"usb\""]}"#)).unwrap();
    assert_eq!(devices(&details, &ancestors_only, &Extras::default()), []);
}

#[test]
fn group_is_named_after_its_topmost_device() {
    let found = find(&[r#"KERNEL=="video*""#, r#"KERNEL=="1-1""#], true, None);
    let properties = [
        ("UDEV_DEVNODE_0", "/dev/bus/usb/001/002"),
        ("UDEV_DEVNODE_1", "/dev/video0"),
        ("UDEV_DEVNODE_2", "/dev/video1"),
    ];
    assert_eq!(found, [device(CAMERA, &properties, &["/dev/bus/usb/001/002", "/dev/video0", "/dev/video1"])]);
}

#[test]
fn grouping_compares_complete_path_components() {
    let found = find(&[r#"KERNEL=="usb1|usb10|1-1|10-1""#], true, None);
    let nodes: Vec<(&str, &[String])> = found.iter().map(|device| (device.id.as_str(), &device.nodes[..])).collect();
    let usb1 = ["/dev/bus/usb/001/001".to_owned(), "/dev/bus/usb/001/002".to_owned()];
    let usb10 = ["/dev/bus/usb/010/001".to_owned(), "/dev/bus/usb/010/002".to_owned()];
    assert_eq!(nodes, [(HUB, &usb1[..]), (HUB10, &usb10[..])]);
}

#[test]
fn sibling_devices_are_not_grouped() {
    let found = find(&[r#"KERNEL=="video*""#], true, None);
    assert_eq!(
        found,
        [
            device(VIDEO0, &[("UDEV_DEVNODE_0", "/dev/video0")], &["/dev/video0"]),
            device(VIDEO1, &[("UDEV_DEVNODE_0", "/dev/video1")], &["/dev/video1"]),
        ]
    );
}

#[test]
fn group_spans_unmatched_devices() {
    let found = find(&[r#"KERNEL=="usb1""#, r#"KERNEL=="video1""#], true, None);
    let properties = [("UDEV_DEVNODE_0", "/dev/bus/usb/001/001"), ("UDEV_DEVNODE_1", "/dev/video1")];
    assert_eq!(found, [device(HUB, &properties, &["/dev/bus/usb/001/001", "/dev/video1"])]);
}

#[test]
fn resource_name_adds_the_usb_or_pci_address() {
    let camera = [("UDEV_DEVNODE", "/dev/bus/usb/001/002"), ("USB_RESOURCE_AKRI_SH_CAM", "1:2")];
    assert_eq!(
        find(&[r#"KERNEL=="1-1""#], false, Some("akri.sh/cam")),
        [device(CAMERA, &camera, &["/dev/bus/usb/001/002"])]
    );
    let group = find(&[r#"KERNEL=="1-1|video0""#], true, Some("akri.sh/cam"));
    let names: Vec<&str> = group[0].properties.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["UDEV_DEVPATH", "UDEV_DEVNODE_0", "USB_RESOURCE_AKRI_SH_CAM_0", "UDEV_DEVNODE_1"]);
    let controller = [("PCI_RESOURCE_AKRI_SH_CARD", "0000:00:14.0")];
    assert_eq!(find(&[r#"SUBSYSTEM=="pci""#], false, Some("akri.sh/card")), [device(CONTROLLER, &controller, &[])]);
}

#[test]
fn properties_come_from_the_nearest_device_that_has_them() {
    let json = serde_json::json!({ "udevRules": [r#"KERNEL=="video0""#],
        "properties": ["ID_SERIAL", "idVendor", "product", "index", "none", "DEVNODE"] });
    let found = devices(&Details::parse(Some(&json.to_string())).unwrap(), &snapshot(), &Extras::default());
    let properties = [
        ("UDEV_DEVNODE", "/dev/video0"),
        ("UDEV_IDVENDOR", "046d"),
        ("UDEV_ID_SERIAL", "Acme_HD_Pro_Webcam_C920_CAM00000"),
        ("UDEV_INDEX", "0"),
        ("UDEV_PRODUCT", "HD Pro Webcam C920"),
    ];
    assert_eq!(found, [device(VIDEO0, &properties, &["/dev/video0"])]);
}

#[test]
fn vfio_nodes_are_of_the_nearest_iommu_group() {
    let grouped = |group: &str| -> Snapshot {
        let with_group = |record: &Record| {
            let mut record = record.clone();
            if record.devpath == CONTROLLER {
                record.attributes.push((IOMMU_GROUP.into(), group.into()));
            }
            record
        };
        (0..).map_while(|index| snapshot().get(index).map(with_group)).collect()
    };
    let nodes = |rule: &str, group: &str, vfio: bool| {
        let details = Details::parse(Some(&serde_json::json!({ "udevRules": [rule] }).to_string())).unwrap();
        let extras = Extras { resource: None, vfio };
        devices(&details, &grouped(group), &extras).into_iter().flat_map(|device| device.vfio_nodes).collect::<Vec<_>>()
    };
    assert_eq!(nodes(r#"SUBSYSTEM=="pci""#, "7", true), ["/dev/vfio/7", "/dev/vfio/vfio"]);
    assert_eq!(nodes(r#"KERNEL=="video0""#, "7", true), ["/dev/vfio/7", "/dev/vfio/vfio"], "its controller's group");
    assert_eq!(nodes(r#"SUBSYSTEM=="pci""#, "7", false), [""; 0]);
    assert_eq!(nodes(r#"KERNEL=="null""#, "7", true), [""; 0], "it has no group");
    assert_eq!(nodes(r#"SUBSYSTEM=="pci""#, "../mem", true), [""; 0]);
}

#[test]
fn unreadable_device_may_have_the_id_of_an_ancestor() {
    let paths = ["/devices/pci/usb1/1-1".to_owned(), "/devices/pci/usb1/1-2".to_owned()];
    let expected = ["/devices", "/devices/pci", "/devices/pci/usb1", "/devices/pci/usb1/1-1", "/devices/pci/usb1/1-2"];
    assert_eq!(possible_ids(&paths).into_iter().collect::<Vec<_>>(), expected);
    let many: Vec<String> = (0..2 * MAX_KEPT).map(|number| format!("/devices/{number}/x")).collect();
    assert_eq!(possible_ids(&many).len(), MAX_KEPT);
    assert!(possible_ids(&many[..1000]).contains("/devices/999/x"));
}
