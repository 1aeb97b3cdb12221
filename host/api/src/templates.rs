//! Validation of what a Configuration says of names and paths (rule 124, rule 125).

use std::collections::BTreeSet;

use akri_model::container_paths::{INDEX, MAX_RULES};
use akri_model::device_path::is_plain;
use akri_model::instance_names::checked;
use akri_model::template::{MAX_TEMPLATE, Template};

use crate::configuration::{ConfigurationSpec, ContainerPath};
use crate::validate::FieldErrors;

/// Adds the problems of `container` and `instanceName`.
pub(crate) fn check(configuration: &str, spec: &ConfigurationSpec, errors: &mut FieldErrors) {
    let paths = spec.container.as_ref().map(|container| container.paths.as_slice()).unwrap_or_default();
    if paths.len() > MAX_RULES {
        errors.add("/spec/container/paths", format!("has {} rules, more than {MAX_RULES}", paths.len()));
    }
    let mut sources = BTreeSet::new();
    for (index, rule) in paths.iter().enumerate() {
        let at = format!("/spec/container/paths/{index}");
        check_path(&at, rule, errors);
        if !sources.insert(&rule.host_path) {
            errors.add(format!("{at}/hostPath"), format!("'{}' is there twice", rule.host_path));
        }
    }
    if let Some(text) = &spec.instance_name {
        check_name(configuration, text, errors);
    }
}

fn check_path(at: &str, rule: &ContainerPath, errors: &mut FieldErrors) {
    let path = &rule.host_path;
    if path.len() > MAX_TEMPLATE || !is_plain(path) {
        errors.add(format!("{at}/hostPath"), not_plain(path));
    }
    match rule.container_path.parse::<Template>() {
        Err(error) => errors.add(format!("{at}/containerPath"), error.to_string()),
        Ok(template) if !is_plain(&template.expand_all("0")) => {
            errors.add(format!("{at}/containerPath"), not_plain(&rule.container_path));
        }
        Ok(_) => {}
    }
}

fn not_plain(path: &str) -> String {
    format!("'{}' is not an absolute path without '.' and '..' of at most {MAX_TEMPLATE} bytes", path.escape_debug())
}

fn check_name(configuration: &str, text: &str, errors: &mut FieldErrors) {
    let at = "/spec/instanceName";
    match text.parse::<Template>() {
        Err(error) => errors.add(at, error.to_string()),
        Ok(template) if template.names(INDEX) => {
            errors.add(at, "'{{index}}' is for paths in containers: a device has no number of its own");
        }
        // What a device's properties add can't make it one.
        Ok(template) => {
            if let Err(problem) = checked(&template.expand_all("x"), configuration) {
                errors.add(at, problem);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::configuration::Configuration;
    use crate::validate::configuration;

    fn errors_of(mut spec: Value) -> Vec<String> {
        spec["discoveryHandler"] = json!({"name": "udev"});
        let object = json!({"metadata": {"name": "cam"}, "spec": spec});
        let parsed: Configuration = serde_json::from_value(object).unwrap();
        configuration(&parsed).into_iter().map(|error| format!("{}: {}", error.path, error.message)).collect()
    }

    fn path(host: &str, container: &str) -> Vec<String> {
        errors_of(json!({"container": {"paths": [{"hostPath": host, "containerPath": container}]}}))
    }

    #[test] // rule 124
    fn paths_are_plain_and_templates_are_closed() {
        for (host, container) in [
            ("/dev/ttyUSB*", "/dev/plc{{index}}"),
            ("/dev/serial/by-id/**", "/dev/{{UDEV_ID_SERIAL}}"),
            ("/run/x", "/x"),
        ] {
            assert_eq!(path(host, container), [""; 0], "{host} {container}");
        }
        let at = "/spec/container/paths/0/";
        for (host, container, error) in [
            ("dev/x", "/dev/x", "hostPath: 'dev/x' is not an absolute path"),
            ("/dev/../x", "/dev/x", "hostPath: '/dev/../x' is not an absolute path"),
            ("/", "/dev/x", "hostPath: '/' is not"),
            ("/dev/x", "/dev/../etc/passwd", "containerPath: '/dev/../etc/passwd' is not an absolute path"),
            ("/dev/x", "{{UDEV_DEVNODE}}", "containerPath: '{{UDEV_DEVNODE}}' is not an absolute path"),
            ("/dev/x", "/dev/{{x", "containerPath: '{{' has no '}}'"),
            ("/dev/x", "", "containerPath: has 0 bytes"),
            (&format!("/{}", "x".repeat(256)), "/x", "hostPath: '/xxx"),
        ] {
            let found = path(host, container);
            assert!(found.len() == 1 && found[0].starts_with(&format!("{at}{error}")), "{error}: {found:?}");
        }
        let rule = json!({"hostPath": "/dev/x", "containerPath": "/dev/y"});
        let twice = errors_of(json!({"container": {"paths": [rule, rule]}}));
        assert_eq!(twice, ["/spec/container/paths/1/hostPath: '/dev/x' is there twice"]);
        let many: Vec<Value> = (0..65).map(|n| json!({"hostPath": format!("/{n}"), "containerPath": "/x"})).collect();
        let found = errors_of(json!({"container": {"paths": many}}));
        assert_eq!(found, ["/spec/container/paths: has 65 rules, more than 64"]);
    }

    #[test] // rule 125
    fn names_that_no_device_could_have_are_refused() {
        for name in ["cam-{{SERIAL}}", "{{A}}", "stick", "Cam_{{A}}"] {
            assert_eq!(errors_of(json!({"instanceName": name})), [""; 0], "{name}");
        }
        for (name, error) in [
            ("", "has 0 bytes; a template has 1 to 256"),
            ("cam-{{index}}", "'{{index}}' is for paths in containers"),
            ("cam-{{A}}-", "'cam-x-' is not 1 to 63 of a-z"),
            ("\u{430}-{{A}}", "'\u{430}-x' is not 1 to 63 of a-z"),
            ("cam", "'cam' is the Configuration's own name"),
            ("cam-8120fe", "'cam-8120fe' is the Configuration's own name, or looks like a hash"),
            ("cam-{{A", "'{{' has no '}}'"),
        ] {
            let found = errors_of(json!({"instanceName": name}));
            assert!(found.len() == 1 && found[0].starts_with(&format!("/spec/instanceName: {error}")), "{found:?}");
        }
    }
}
