//! All checks of a DiscoveryHandler.

use akri_api::manifest::typed;
use akri_api::{DiscoveryHandler, validate};
use serde_json::{Value, json};

use crate::configuration::name;
use crate::review::Request;
use crate::review_outcome::ReviewOutcome;

/// Checks the DiscoveryHandler of a request.
pub(crate) fn check(request: &Request) -> ReviewOutcome {
    let spec = request.object.as_ref().and_then(|object| object.data.get("spec")).cloned().unwrap_or(Value::Null);
    let object = json!({"metadata": {"name": name(request)}, "spec": spec});
    match typed::<DiscoveryHandler>(&object) {
        Ok(handler) => ReviewOutcome::invalid(validate::discovery_handler(&handler)),
        Err(errors) => ReviewOutcome::invalid(errors),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::review::parse;
    use crate::testing::review;

    fn fields(spec: &Value) -> Vec<String> {
        let object = json!({"metadata": {"name": "udev"}, "spec": spec});
        let request = review("discoveryhandlers", "CREATE", &object, &Value::Null);
        let outcome = check(&parse(request.to_string().as_bytes()).unwrap());
        outcome.invalid.into_iter().map(|finding| finding.field).collect()
    }

    #[test] // rule 63
    fn grants_and_limits_are_checked_before_an_agent_gets_them() {
        assert!(fields(&json!({"component": {"file": "udev.wasm"}})).is_empty());
        let grants = json!({"tcp": [{"networks": ["10.0.0.0/33"], "ports": [0]}], "devicePaths": ["/dev/../etc"]});
        let expected = ["spec.grants.devicePaths[0]", "spec.grants.tcp[0].networks[0]", "spec.grants.tcp[0].ports[0]"];
        assert_eq!(fields(&json!({"component": {"file": "udev.wasm"}, "grants": grants})), expected);
        assert_eq!(fields(&json!({"component": {"file": "x.wasm"}, "grant": {}})), ["spec.grant"]);
        assert_eq!(fields(&json!({})), ["spec"]);
    }
}
