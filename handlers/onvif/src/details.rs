//! The `discoveryDetails` of onvif.

use std::time::Duration;

use akri_handler::{Filter, Problem, Window, read};
use serde::{Deserialize, Serialize};

use crate::filter::{Ip, Mac, Scope, Uuid};

/// The details of one Configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Details {
    /// Filter by IP address.
    pub ip_addresses: Option<Filter<Ip>>,
    /// Filter by the MAC address of the interface with this IP address.
    pub mac_addresses: Option<Filter<Mac>>,
    /// Filter by announced scopes.
    pub scopes: Option<Filter<Scope>>,
    /// Filter by endpoint reference.
    pub uuids: Option<Filter<Uuid>>,
    /// Time to wait for responses to the probe.
    pub window: Duration,
    /// The stream whose URI is requested, if any.
    pub stream: Option<WantedStream>,
    /// Set if a camera without that URI is held back.
    pub stream_required: bool,
    /// The meaning of "the same camera".
    pub identify_by: IdentifyBy,
}

/// The facts of a camera that identify a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub enum IdentifyBy {
    /// The UUID.
    #[default]
    Uuid,
    /// The service URL and the UUID, as in upstream Akri: its Instances keep their names.
    UrlAndUuid,
}

/// The media profile of the requested stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum WantedStream {
    /// The first profile of the camera, by convention its main stream.
    First,
    /// The profile with this token or name.
    Profile(String),
}

/// The fields of the details as written.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Fields {
    ip_addresses: Option<Filter<Ip>>,
    mac_addresses: Option<Filter<Mac>>,
    scopes: Option<Filter<Scope>>,
    uuids: Option<Filter<Uuid>>,
    #[serde(default)]
    discovery_timeout_seconds: Window<1>,
    #[serde(default)]
    stream_uri: bool,
    stream_profile: Option<String>,
    #[serde(default)]
    stream_required: bool,
    #[serde(default)]
    identify_by: IdentifyBy,
}

impl Details {
    /// Parses the details as the host passes them: as JSON, or `None` if they are neither YAML nor JSON. Empty details
    /// select every camera.
    ///
    /// # Errors
    /// The first bad field.
    pub fn parse(json: Option<&str>) -> Result<Self, Problem> {
        let json = json.map(|json| if json.trim() == "null" { "{}" } else { json });
        let fields: Fields = read(json, "the details must be a mapping, with fields such as 'ipAddresses'")?;
        let stream = match fields.stream_profile {
            Some(profile) => Some(WantedStream::Profile(profile)),
            None => fields.stream_uri.then_some(WantedStream::First),
        };
        Ok(Self {
            ip_addresses: fields.ip_addresses,
            mac_addresses: fields.mac_addresses,
            scopes: fields.scopes,
            uuids: fields.uuids,
            window: fields.discovery_timeout_seconds.0,
            stream,
            stream_required: fields.stream_required,
            identify_by: fields.identify_by,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use akri_handler::FilterAction;

    fn parsed(json: &str) -> Details {
        Details::parse(Some(json)).unwrap()
    }

    fn problem(json: &str) -> (String, String) {
        let problem = Details::parse(Some(json)).unwrap_err();
        (problem.path, problem.message)
    }

    #[test]
    fn defaults_fill_every_field() {
        let every_camera = Details {
            ip_addresses: None,
            mac_addresses: None,
            scopes: None,
            uuids: None,
            window: Duration::from_secs(1),
            stream: None,
            stream_required: false,
            identify_by: IdentifyBy::Uuid,
        };
        for json in ["{}", "null", r#"{"ipAddresses": null, "streamUri": false}"#] {
            assert_eq!(parsed(json), every_camera);
        }
    }

    #[test]
    fn upstream_example_is_accepted() {
        let details = parsed(
            r#"{"ipAddresses": {"action": "Exclude", "items": ["10.0.0.1"]},
                "macAddresses": {"action": "Exclude", "items": []},
                "scopes": {"action": "Include", "items": ["onvif://www.onvif.org/name/A", "onvif://www.onvif.org/x"]},
                "uuids": {"items": ["3fa1fe68-b915-4053-a3e1-a8294833fe3c"]},
                "discoveryTimeoutSeconds": 2}"#,
        );
        assert_eq!(details.ip_addresses.map(|filter| filter.action), Some(FilterAction::Exclude));
        assert_eq!(details.mac_addresses, Some(Filter { action: FilterAction::Exclude, items: vec![] }));
        assert_eq!(details.scopes.map(|filter| filter.items.len()), Some(2));
        assert_eq!(details.uuids.map(|filter| filter.action), Some(FilterAction::Include));
        assert_eq!(details.window, Duration::from_secs(2));
    }

    #[test]
    fn profile_selection_is_optional() {
        assert_eq!(parsed(r#"{"streamUri": true}"#).stream, Some(WantedStream::First));
        let named = Some(WantedStream::Profile("sub".into()));
        assert_eq!(parsed(r#"{"streamProfile": "sub"}"#).stream, named);
        assert_eq!(parsed(r#"{"streamUri": true, "streamProfile": "sub"}"#).stream, named);
    }

    #[test]
    fn details_that_are_not_a_mapping_are_refused() {
        for json in ["[]", "3", r#""x""#] {
            let message = "the details must be a mapping, with fields such as 'ipAddresses'";
            assert_eq!(problem(json), ("".into(), message.into()));
        }
        for json in [None, Some(""), Some("{")] {
            assert_eq!(Details::parse(json), Err(Problem::invalid("", "the details are neither YAML nor JSON")));
        }
    }

    #[test]
    fn bad_field_is_named() {
        for (json, path, message) in [
            (
                r#"{"ipAddresses": {"items": ["10.0.0.1", "10.0.0"]}}"#,
                "/ipAddresses/items/1",
                "'10.0.0' is no IP address; write one such as 192.168.1.20",
            ),
            (
                r#"{"macAddresses": {"items": ["00:11"]}}"#,
                "/macAddresses/items/0",
                "'00:11' is no MAC address; write one such as 00:1a:2b:3c:4d:5e",
            ),
            (r#"{"uuids": {"items": [""]}}"#, "/uuids/items/0", "'' is no UUID of a camera"),
            (
                r#"{"ipAddresses": ["Include", ["10.0.0.1"]]}"#,
                "/ipAddresses",
                "invalid type: sequence, expected a mapping such as {items: [...]}",
            ),
            (r#"{"scopes": {}}"#, "/scopes", "without items it selects nothing; write {items: [...]}"),
            (r#"{"uuids": {"items": "a"}}"#, "/uuids/items", "invalid type: string \"a\", expected a sequence"),
            (
                r#"{"scopes": {"items": ["a b"]}}"#,
                "/scopes/items/0",
                "'a b' is no scope; a scope is one URI without blanks in it",
            ),
            (
                r#"{"scopes": {"action": "exclude"}}"#,
                "/scopes/action",
                "unknown variant `exclude`, expected `Include` or `Exclude`",
            ),
            (r#"{"scopes": {"item": []}}"#, "/scopes/item", "unknown field `item`, expected `action` or `items`"),
            (
                r#"{"discoveryTimeoutSeconds": 0}"#,
                "/discoveryTimeoutSeconds",
                "answers are waited for 1 to 30 seconds, not 0",
            ),
            (
                r#"{"discoveryTimeoutSeconds": -1}"#,
                "/discoveryTimeoutSeconds",
                "answers are waited for 1 to 30 seconds, not -1",
            ),
            (r#"{"identifyBy": "Url"}"#, "/identifyBy", "unknown variant `Url`, expected `Uuid` or `UrlAndUuid`"),
            (r#"{"streamUri": "yes"}"#, "/streamUri", "invalid type: string \"yes\", expected a boolean"),
        ] {
            assert_eq!(problem(json), (path.into(), message.into()), "{json}");
        }
        assert_eq!(problem(r#"{"ipAddress": {}}"#).0, "/ipAddress");
    }
}
