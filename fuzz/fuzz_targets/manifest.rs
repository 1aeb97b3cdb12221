//! Manifests: whatever they hold, what is read of them is sound, and nothing tells what a Secret holds.
#![no_main]

use std::path::Path;

use akri_api::manifest::{Object, parse};
use akri_api::{HandlerRules, configuration_to_model, data, validate};
use akri_model::resolve::{MAX_VALUES, resolve};
use libfuzzer_sys::fuzz_target;

/// The start of the input, since it would take long to find by chance.
const BEGINNINGS: [&str; 5] = [
    "",
    "apiVersion: akri.sh/v0\nkind: Configuration\nmetadata: {name: a}\nspec:\n  discoveryHandler:\n    name: h\n",
    "apiVersion: akri.sh/v0\nkind: DiscoveryHandler\nmetadata: {name: a}\nspec:\n  component: {file: a}\n",
    "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n",
    "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData:\n  k: c4n4ry\n",
];

fuzz_target!(|input: &str| {
    for beginning in BEGINNINGS {
        check(&format!("{beginning}{input}"), !input.contains("c4n4ry"));
    }
});

fn check(text: &str, canary: bool) {
    let (manifests, errors) = parse(Path::new("f"), text);
    if canary {
        assert!(errors.iter().all(|error| !error.to_string().contains("c4n4ry")), "{errors:?}");
        assert!(!format!("{manifests:?}").contains("c4n4ry"));
    }
    let lines = text.matches(['\n', '\r']).count() as u64 + 1;
    assert!(errors.iter().all(|error| error.line.is_none_or(|line| (1..=lines).contains(&line))), "{errors:?}");
    let values = data::values(&manifests);
    for manifest in &manifests {
        match &manifest.object {
            Object::Configuration(object) => {
                assert_eq!(validate::configuration(object), []);
                let resolved = resolve(&configuration_to_model(object).properties, &values);
                let bytes = |resolved: akri_model::property::Resolved| {
                    let plain = resolved.properties.values().map(Vec::len).sum::<usize>();
                    plain + resolved.secrets.values().map(|secret| secret.reveal().len()).sum::<usize>()
                };
                assert!(resolved.map_or(0, bytes) <= MAX_VALUES);
            }
            Object::DiscoveryHandler(object) => {
                assert_eq!(validate::discovery_handler(object), []);
                assert!(!HandlerRules::from(&**object).limits.round.is_zero());
            }
            Object::Data(..) => {}
        }
    }
}
