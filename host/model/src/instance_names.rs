//! The names that a Configuration wants for the Instances of its devices (rule 125).

use std::collections::BTreeMap;

use crate::configuration::Configuration;
use crate::device::Device;
use crate::names::{Identity, MAX_NAME, is_hash, short_name};
use crate::text::{cut, visible};

/// Bytes shown of what a handler wrote.
const SHOWN: usize = 80;

/// The reason why a device's Instance is named by its hash although the Configuration has a template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameProblem {
    /// Names end in hashes.
    #[error("the Configuration has no instanceName")]
    NoTemplate,
    /// The name can't be had, for this reason.
    #[error("{0}")]
    Unusable(String),
}

/// The name that is wanted for each device.
pub type WantedNames = BTreeMap<Identity, Result<String, NameProblem>>;

/// Returns the names that are wanted for devices. Of several that would have one name, that keeps it which has it now.
pub fn wanted<'a>(
    configuration: &Configuration,
    devices: impl IntoIterator<Item = (Identity, &'a Device)>,
    current: impl Fn(&Identity) -> Option<&'a str>,
) -> WantedNames {
    let devices: BTreeMap<Identity, &Device> = devices.into_iter().collect();
    let mut names: WantedNames =
        devices.iter().map(|(identity, device)| (identity.clone(), name(configuration, device))).collect();
    let mut of_name: BTreeMap<String, Vec<Identity>> = BTreeMap::new();
    for (identity, name) in &names {
        name.iter().for_each(|name| of_name.entry(name.clone()).or_default().push(identity.clone()));
    }
    for (name, same) in of_name.iter().filter(|(_, same)| same.len() > 1) {
        for identity in same.iter().filter(|of| current(of) != Some(name)) {
            let other = same.iter().find(|other| *other != identity).and_then(|other| devices.get(other));
            let other = other.map(|device| shown(&device.id)).unwrap_or_default();
            let why = format!("device '{other}' would be '{name}', too");
            names.insert(identity.clone(), Err(NameProblem::Unusable(why)));
        }
    }
    names
}

fn name(configuration: &Configuration, device: &Device) -> Result<String, NameProblem> {
    let template = configuration.instance_name.as_ref().ok_or(NameProblem::NoTemplate)?;
    let name = template.expand(&configuration.broker_view(&device.properties), "");
    name.and_then(|name| checked(&name, &configuration.key.name)).map_err(NameProblem::Unusable)
}

/// Returns whether an Instance has to be named anew.
pub fn is_misnamed(configuration: &Configuration, name: &str, wanted: &Result<String, NameProblem>) -> bool {
    let is_hashed = || short_name(&configuration.key.name, name) != name;
    wanted.as_ref().map_or_else(|_| !is_hashed(), |wanted| wanted != name)
}

/// Returns a text as the name of an Instance of a Configuration: letters are lower-case, and what else a label can't have is `-`.
///
/// # Errors
/// If it is none then, or reserved.
pub fn checked(text: &str, configuration: &str) -> Result<String, String> {
    let letter = |c: char| match c.to_ascii_lowercase() {
        c if c.is_ascii_lowercase() || c.is_ascii_digit() || !c.is_ascii() => c,
        _ => '-',
    };
    let name: String = text.chars().map(letter).collect();
    let is_edge = |c: char| c != '-';
    if name.len() > MAX_NAME || !name.is_ascii() || !(name.starts_with(is_edge) && name.ends_with(is_edge)) {
        let shown = shown(text);
        return Err(format!("'{shown}' is not 1 to 63 of a-z, 0-9 and '-', with none of the last at its ends"));
    }
    // Names of resources and CDI devices of others may be like these.
    if name == configuration || is_hash(&name) || short_name(configuration, &name) != name {
        return Err(format!("'{name}' is the Configuration's own name, or looks like a hash"));
    }
    Ok(name)
}

fn shown(text: &str) -> String {
    visible(cut(text, SHOWN))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::{HashInput, Key};

    fn device(serial: &str) -> Device {
        let properties = [("SERIAL".to_owned(), serial.to_owned())].into();
        Device { id: format!("id-{serial}"), properties, ..Device::default() }
    }

    fn identity(serial: &str) -> Identity {
        HashInput::new(serial, true, "").identity()
    }

    fn names(template: &str, serials: &[&str], current: &[(&str, &str)]) -> Vec<String> {
        let configuration = Configuration {
            key: Key::new("default", "cam"),
            instance_name: Some(template.parse().unwrap()),
            ..Configuration::default()
        };
        let devices: Vec<(Identity, Device)> =
            serials.iter().map(|serial| (identity(serial), device(serial))).collect();
        let current: BTreeMap<Identity, &str> = current.iter().map(|(of, name)| (identity(of), *name)).collect();
        let all = devices.iter().map(|(identity, device)| (identity.clone(), device));
        let wanted = wanted(&configuration, all, |of| current.get(of).copied());
        let text = |name: &Result<String, NameProblem>| match name {
            Ok(name) => name.clone(),
            Err(problem) => problem.to_string(),
        };
        devices.iter().map(|(identity, _)| text(&wanted[identity])).collect()
    }

    #[test] // rule 125
    fn names_are_mapped_to_labels() {
        for (serial, name) in
            [("SN123", "cam-sn123"), ("sn_1.2:3/4 5", "cam-sn-1-2-3-4-5"), ("x".repeat(59).as_str(), &"x".repeat(59))]
        {
            let found = names("cam-{{SERIAL}}", &[serial], &[]);
            assert_eq!(found, [if serial.len() == 59 { format!("cam-{name}") } else { name.to_owned() }]);
        }
    }

    #[test] // rule 125
    fn names_that_are_no_labels_are_refused() {
        let long = "x".repeat(300);
        for serial in ["", "...", "Ё", "\u{430}\u{431}", "-", "a-", &long, "sn\u{202e}"] {
            let found = names("{{SERIAL}}", &[serial], &[]).remove(0);
            assert!(found.ends_with("is not 1 to 63 of a-z, 0-9 and '-', with none of the last at its ends"));
            assert!(found.len() < 200, "{found}");
        }
        for serial in ["cam", "8120FE", "012345678901", "cam-8120fe"] {
            let found = names("{{SERIAL}}", &[serial], &[]).remove(0);
            let name = serial.to_lowercase();
            assert_eq!(found, format!("'{name}' is the Configuration's own name, or looks like a hash"));
        }
        let missing = names("cam-{{NUMBER}}", &["1"], &[]);
        assert_eq!(missing, ["the device has no property 'NUMBER'; it has SERIAL"]);
    }

    #[test] // rule 125
    fn repeated_name_stays_with_the_device_that_has_it() {
        let (a, b) = ("device 'id-a.1' would be 'cam-a-1', too", "device 'id-a:1' would be 'cam-a-1', too");
        assert_eq!(names("cam-{{SERIAL}}", &["a.1", "a:1", "b"], &[]), [b, a, "cam-b"]);
        let kept = names("cam-{{SERIAL}}", &["a.1", "a:1"], &[("a.1", "cam-a-1"), ("a:1", "cam-8120fe")]);
        assert_eq!(kept, ["cam-a-1", a]);
    }
}
