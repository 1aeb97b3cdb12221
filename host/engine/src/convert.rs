//! From the types of the WIT package to the model's, and whether a guest's answer keeps to the limits.

use std::collections::HashSet;
use std::time::Duration;

use akri_model::device::{Device, DeviceSpec, Mount};
use akri_model::discovery::{Description, Problem, RoundError, Trigger};
use akri_model::grant::Limits;
use akri_model::text::{clean, clean_lines};

use crate::bindings::{handler, types};

/// Problems shown of one answer; whoever has more has enough to do.
const PROBLEMS: usize = 32;
/// Hints and triggers looked at.
const HINTS: usize = 64;
/// Bytes of a handler's name or version.
const NAME: usize = 253;

/// The devices of a round, each within the limits, their ids unique and not empty.
pub(crate) fn devices(devices: Vec<types::Device>, limits: &Limits) -> Result<Vec<Device>, RoundError> {
    within("devices", devices.len(), limits.devices)?;
    let devices: Vec<Device> = devices.into_iter().map(Device::from).collect();
    let mut ids = HashSet::with_capacity(devices.len());
    for device in &devices {
        let id = clean(&device.id, 64);
        if id.is_empty() {
            return Err(RoundError::InvalidResult("a device has an empty id".to_owned()));
        }
        device.check(limits).map_err(|what| RoundError::LimitExceeded(format!("device `{id}`: {what}")))?;
        if !ids.insert(device.id.as_str()) {
            let why = format!("two devices have the id `{id}`; list each device once, with an id of its own");
            return Err(RoundError::InvalidResult(why));
        }
    }
    Ok(devices)
}

fn within(what: &str, count: usize, max: usize) -> Result<(), RoundError> {
    let over = || RoundError::LimitExceeded(format!("{what}: {count} (at most {max})"));
    if count <= max { Ok(()) } else { Err(over()) }
}

impl From<types::Device> for Device {
    /// Of properties with one name the last counts, as in a container's environment.
    fn from(device: types::Device) -> Self {
        Self {
            id: device.id,
            origin: device.origin,
            properties: device.properties.into_iter().collect(),
            mounts: device.mounts.into_iter().map(Mount::from).collect(),
            device_specs: device.device_specs.into_iter().map(DeviceSpec::from).collect(),
        }
    }
}

impl From<types::Mount> for Mount {
    fn from(mount: types::Mount) -> Self {
        Self { container_path: mount.container_path, host_path: mount.host_path, read_only: mount.read_only }
    }
}

impl From<types::DeviceSpec> for DeviceSpec {
    fn from(spec: types::DeviceSpec) -> Self {
        Self { container_path: spec.container_path, host_path: spec.host_path, permissions: spec.permissions }
    }
}

/// Converts a guest's error.
pub(crate) fn discovery_error(error: types::DiscoveryError, limits: &Limits) -> RoundError {
    match error {
        types::DiscoveryError::InvalidDetails(found) => RoundError::InvalidDetails(problems(found, limits)),
        types::DiscoveryError::NotGranted(what) => RoundError::NotGranted(clean(&what, limits.string_bytes)),
        types::DiscoveryError::Unavailable(what) => RoundError::Unavailable(clean(&what, limits.string_bytes)),
    }
}

/// Converts problems of the details: at least one.
pub(crate) fn problems(problems: Vec<types::Problem>, limits: &Limits) -> Vec<Problem> {
    let text = |text: &str| clean(text, limits.string_bytes);
    let problem = |p: types::Problem| Problem {
        path: text(&p.path),
        reason: text(&p.reason),
        message: clean_lines(&p.message, limits.string_bytes),
    };
    let mut problems: Vec<Problem> = problems.into_iter().take(PROBLEMS).map(problem).collect();
    if problems.is_empty() {
        let message = "the handler refuses the details without saying why".to_owned();
        problems.push(Problem { path: String::new(), reason: "InvalidDetails".to_owned(), message });
    }
    problems
}

/// Converts triggers; unknown kinds are left out.
pub(crate) fn triggers(pairs: &[(String, String)], limits: &Limits) -> Vec<Trigger> {
    let known = pairs.iter().take(HINTS).filter(|(_, value)| value.len() <= limits.string_bytes);
    known.filter_map(|(kind, value)| Trigger::parse(kind, value)).collect()
}

/// Converts the handler's description, or returns its problem.
pub(crate) fn description(described: handler::Description) -> Result<Description, String> {
    let handler::Description { name, version, shared, hints } = described;
    let interval = |(kind, value): &(String, String)| match Trigger::parse(kind, value) {
        Some(Trigger::Interval(pause)) => Some(pause).filter(|pause| *pause > Duration::ZERO),
        _ => None,
    };
    let interval = hints.iter().take(HINTS).find_map(interval);
    check_description(Description { name, version, shared, interval })
}

/// Returns a description if its name and version are words.
pub fn check_description(description: Description) -> Result<Description, String> {
    let Description { name, version, .. } = &description;
    let word = |text: &str| text.len() <= NAME && !text.chars().any(|c| c.is_control() || c.is_whitespace());
    if name.is_empty() || !word(name) {
        return Err(format!("the name {:?} is not a word of at most {NAME} bytes", clean(name, 64)));
    }
    if !word(version) {
        return Err(format!("the version {:?} is not a word of at most {NAME} bytes", clean(version, 64)));
    }
    Ok(description)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn device(id: &str) -> types::Device {
        types::Device {
            id: id.to_owned(),
            origin: String::new(),
            properties: Vec::new(),
            mounts: Vec::new(),
            device_specs: Vec::new(),
            hints: Vec::new(),
        }
    }

    fn refused(change: impl FnOnce(&mut types::Device)) -> String {
        let mut changed = device("d");
        change(&mut changed);
        devices(vec![device("first"), changed], &Limits::default()).unwrap_err().to_string()
    }

    #[test]
    fn answers_over_a_limit_are_refused_by_name() {
        let long = "x".repeat(4097);
        let mount = types::Mount { container_path: long.clone(), host_path: String::new(), read_only: true };
        let spec =
            types::DeviceSpec { container_path: String::new(), host_path: String::new(), permissions: long.clone() };
        assert_eq!(refused(|d| d.id = String::new()), "invalid result: a device has an empty id");
        let twice = refused(|d| d.id = "first".to_owned());
        assert_eq!(
            twice,
            "invalid result: two devices have the id `first`; list each device once, with an id of its own"
        );
        assert!(refused(|d| d.id = long.clone()).contains("its id: 4097 bytes"));
        assert!(refused(|d| d.origin = long.clone()).contains("its origin"));
        assert!(
            refused(|d| d.properties = (0..65).map(|n| (n.to_string(), String::new())).collect())
                .contains("properties: 65")
        );
        assert!(refused(|d| d.properties = vec![(long.clone(), String::new())]).contains("property's name"));
        assert!(refused(|d| d.properties = vec![(String::new(), long.clone())]).contains("property's value"));
        assert!(refused(|d| d.mounts = vec![mount.clone(); 65]).contains("mounts: 65"));
        assert!(refused(|d| d.mounts = vec![mount.clone()]).contains("a mount's path"));
        assert!(refused(|d| d.device_specs = vec![spec.clone(); 65]).contains("device specs: 65"));
        assert!(refused(|d| d.device_specs = vec![spec.clone()]).contains("permissions"));
    }

    #[test]
    fn too_many_devices_are_refused() {
        let many = (0..4097).map(|i| device(&i.to_string())).collect();
        let error = devices(many, &Limits::default()).unwrap_err();
        assert_eq!(error, RoundError::LimitExceeded("devices: 4097 (at most 4096)".to_owned()));
    }

    #[test]
    fn what_is_exactly_at_a_limit_passes() {
        let mut full = device(&"x".repeat(4096));
        full.properties = (0..64).map(|i| (i.to_string(), "x".repeat(4096))).collect();
        assert_eq!(devices(vec![full], &Limits::default()).unwrap()[0].properties.len(), 64);
    }

    #[test]
    fn a_refusal_without_a_reason_gets_one() {
        let error = discovery_error(types::DiscoveryError::InvalidDetails(Vec::new()), &Limits::default());
        assert!(error.to_string().contains("without saying why"), "{error}");
    }

    #[test]
    fn problems_are_bounded() {
        let problem =
            types::Problem { path: "x".repeat(9000), reason: "R".to_owned(), message: "a\n\x1b b".to_owned() };
        let shown = problems(vec![problem; 100], &Limits::default());
        assert_eq!((shown.len(), shown[0].path.len(), shown[0].message.as_str()), (32, 4096, "a\n  b"));
    }

    fn text() -> impl Strategy<Value = String> {
        prop_oneof![".{0,3}", Just("x".repeat(64)), Just("x".repeat(65)), Just("\0\u{1b}[2J\n".to_owned())]
    }

    prop_compose! {
        fn any_device()(
            (id, origin) in (text(), text()),
            properties in vec((text(), text()), 0..6),
            mounts in vec((text(), text(), any::<bool>()), 0..6),
            specs in vec((text(), text(), text()), 0..6),
        ) -> types::Device {
            let mount = |(container_path, host_path, read_only)| types::Mount { container_path, host_path, read_only };
            let spec = |(container_path, host_path, permissions)| {
                types::DeviceSpec { container_path, host_path, permissions }
            };
            let mounts = mounts.into_iter().map(mount).collect();
            let device_specs = specs.into_iter().map(spec).collect();
            types::Device { id, origin, properties, mounts, device_specs, hints: Vec::new() }
        }
    }

    proptest! {
        #[test]
        fn accepted_devices_keep_to_the_limits(found in vec(any_device(), 0..6)) {
            let limits = Limits { devices: 4, properties: 4, string_bytes: 64, ..Limits::default() };
            let count = found.len();
            if let Ok(devices) = devices(found, &limits) {
                let ids: HashSet<&str> = devices.iter().map(|device| device.id.as_str()).collect();
                prop_assert!(devices.len() == count && count <= 4 && ids.len() == count && !ids.contains(""));
                for device in &devices {
                    prop_assert!(device.properties.len().max(device.mounts.len()).max(device.device_specs.len()) <= 4);
                    let properties = device.properties.iter().flat_map(|(name, value)| [name, value]);
                    let mounts = device.mounts.iter().flat_map(|m| [&m.container_path, &m.host_path]);
                    let specs = device.device_specs.iter().flat_map(|s| [&s.host_path, &s.permissions]);
                    let mut texts = [&device.id, &device.origin].into_iter().chain(properties).chain(mounts).chain(specs);
                    prop_assert!(texts.all(|text| text.len() <= 64));
                }
            }
        }
    }

    fn described(name: &str, hints: &[(&str, &str)]) -> Result<Description, String> {
        let hints = hints.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let version = "1".to_owned();
        description(handler::Description { name: name.to_owned(), version, shared: true, hints })
    }

    #[test]
    fn a_description_needs_a_name() {
        for name in ["", "two words", "line\n", "\x1b[0m", &"x".repeat(254)] {
            assert!(described(name, &[]).is_err(), "{name:?}");
        }
        assert_eq!(described("debugEcho", &[]).unwrap().name, "debugEcho");
    }

    #[test]
    fn an_interval_that_is_none_is_ignored() {
        for (hints, interval) in [
            (&[("interval-ms", "250")][..], Some(Duration::from_millis(250))),
            (&[("interval-ms", "0")], None),
            (&[("interval-ms", "-1"), ("colour", "red")], None),
            (&[], None),
        ] {
            assert_eq!(described("h", hints).unwrap().interval, interval);
        }
    }
}
