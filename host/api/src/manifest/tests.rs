use super::*;

const GOOD: &str = "\
apiVersion: akri.sh/v0
kind: Configuration
metadata:
  name: cam
spec:
  discoveryHandler:
    name: udev
    discoveryDetails: |
      udevRules:
      - KERNEL==\"video*\"
      - 'KERNAL==\"x\"'
  capacity: 2
  brokerSpec:
    brokerPodSpec:
      containers: [{name: b, image: i, someFieldOfTomorrow: 1}]
";

fn errors(text: &str) -> Vec<String> {
    parse(Path::new("cam.yaml"), text).1.iter().map(ToString::to_string).collect()
}

#[test] // rule 33
fn configuration_is_read_and_its_broker_left_alone() {
    let (manifests, errors) = parse(Path::new("cam.yaml"), GOOD);
    assert_eq!(errors, []);
    let [Manifest { object: Object::Configuration(object), .. }] = manifests.as_slice() else {
        panic!("{manifests:?}")
    };
    assert_eq!(object.spec.capacity, 2);
    let broker = object.spec.broker_spec.as_ref().unwrap().broker_pod_spec.as_ref().unwrap();
    assert_eq!(broker["containers"][0]["someFieldOfTomorrow"], 1);
}

#[test] // rule 33
fn errors_name_file_line_and_field() {
    for (from, to, expected) in [
        ("  capacity: 2", "  capacity: 0", "cam.yaml:12: spec.capacity: 0 is not between 1 and 1000"),
        ("  capacity: 2", "  capacty: 2", "cam.yaml:12: spec.capacty: unknown field"),
        (
            "kind: Configuration",
            "kind: Pod",
            "cam.yaml:2: kind: 'Pod' is not Configuration, DiscoveryHandler, ConfigMap or Secret",
        ),
        ("akri.sh/v0", "akri.sh/v1", "cam.yaml:1: apiVersion: 'akri.sh/v1' is not akri.sh/v0"),
        ("  name: cam", "  name: Cam_1", "cam.yaml:4: metadata.name: 'Cam_1' is not a Kubernetes name"),
        ("    brokerPodSpec:", "    brokerPodSpek:", "cam.yaml:14: spec.brokerSpec.brokerPodSpek: unknown field"),
    ] {
        let found = errors(&GOOD.replacen(from, to, 1));
        assert!(found.len() == 1 && found[0].starts_with(expected), "{found:?}");
    }
    let found = errors(&GOOD.replacen("capacity: 2", "capacity: many", 1));
    assert!(found[0].starts_with("cam.yaml:12: spec.capacity: invalid type: string \"many\""), "{found:?}");
    // A misspelt required field is an error twice: the field is missing, and the other one is unknown.
    let found = errors(&GOOD.replacen("    name: udev", "    nam: udev", 1));
    let misspelt = "cam.yaml:7: spec.discoveryHandler.nam: unknown field, did you mean 'name'?";
    assert_eq!(found, [misspelt, "cam.yaml:6: spec.discoveryHandler: missing field `name`"]);
}

#[test]
fn unknown_grant_lists_those_there_are() {
    let handler = |grant: &str| {
        let head =
            "apiVersion: akri.sh/v0\nkind: DiscoveryHandler\nmetadata: {name: h}\nspec:\n  component: {file: h.wasm}\n";
        errors(&format!("{head}  grants:\n    {grant}: []\n"))
    };
    let expected = "cam.yaml:7: spec.grants.sockets: unknown field; the grants are containerPaths, devicePaths, environment, \
                    http, mountPaths, multicast, names, secrets, tcp, udev, udp";
    assert_eq!(handler("sockets"), [expected]);
}

#[test]
fn details_as_a_mapping_are_explained() {
    let found = errors(&GOOD.replacen("discoveryDetails: |", "discoveryDetails:", 1));
    let expected = "cam.yaml:8: spec.discoveryHandler.discoveryDetails: is a mapping and has to be a text: write \
                    'discoveryDetails: |' and leave the lines below it as they are";
    assert_eq!(found, [expected]);
}

#[test]
fn lists_are_read_as_their_items() {
    let indented = |text: &str| format!("- {}", text.trim_end().replace('\n', "\n  "));
    let broken = GOOD.replacen("name: cam", "name: other", 1).replacen("capacity: 2", "capacity: 0", 1);
    let list =
        format!("apiVersion: v1\nkind: List\nmetadata: {{}}\nitems:\n{}\n{}\n", indented(GOOD), indented(&broken));
    let (manifests, errors) = parse(Path::new("list.yaml"), &list);
    assert_eq!(manifests.len(), 1);
    assert_eq!(errors[0].to_string(), "list.yaml:31: spec.capacity: 0 is not between 1 and 1000");
    assert_eq!(parse(Path::new("l"), "apiVersion: v1\nkind: List\nitems: []\n"), (Vec::new(), Vec::new()));
}

#[test] // rule 33
fn older_spellings_name_todays_field() {
    let text = GOOD.replacen("  brokerSpec:\n    brokerPodSpec:", "  brokerPodSpec:", 1);
    assert_eq!(
        errors(&text),
        ["cam.yaml:13: spec.brokerPodSpec: unknown field; today it is spec.brokerSpec.brokerPodSpec"]
    );
}

#[test]
fn one_bad_document_leaves_the_others() {
    let text = format!("{GOOD}---\nkind: Pod\n---\n{}", GOOD.replacen("name: cam", "name: other", 1));
    let (manifests, errors) = parse(Path::new("two.yaml"), &text);
    assert_eq!((manifests.len(), errors.len()), (2, 1));
}

#[test]
fn handlers_problem_is_found_on_its_line() {
    let (manifests, _) = parse(Path::new("cam.yaml"), GOOD);
    let Object::Configuration(object) = &manifests[0].object else { panic!() };
    let problem =
        Problem { path: "/udevRules/1".into(), reason: "InvalidRule".into(), message: "unknown field".into() };
    let located = manifests[0].locate_problems(&object.spec.discovery_handler.discovery_details, &[problem]);
    let expected = "cam.yaml:11: spec.discoveryHandler.discoveryDetails.udevRules[1]: unknown field";
    assert_eq!(located[0].to_string(), expected);
}
