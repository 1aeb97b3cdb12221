//! The `discoveryDetails` of mdns.

use std::collections::BTreeSet;
use std::time::Duration;

use akri_handler::{Filter, Problem, Window, read};
use serde::Deserialize;

use crate::filter::{EntryPattern, InstancePattern};
use crate::name::Name;
use crate::{GROUPS, PORT};

/// Limit on the service types. The host takes as many filters of datagrams.
const MAX_SERVICES: usize = 16;

/// The details of one Configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Details {
    /// The service types, at least one.
    pub services: Vec<ServiceType>,
    /// Filter by the name of the instance.
    pub instances: Option<Filter<InstancePattern>>,
    /// Filter by entries of the `TXT` record.
    pub txt: Option<Filter<EntryPattern>>,
    /// Time to wait for responses to the questions.
    pub window: Duration,
}

/// A type of service, such as `_ipp._tcp`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct ServiceType {
    /// The type as brokers see it: without a subtype and without the domain.
    pub label: String,
    /// The name of the type, which ends the name of each instance.
    pub name: Name,
    /// The name whose pointers are asked for: of the type, or of a subtype of it.
    pub browsed: Name,
}

impl TryFrom<String> for ServiceType {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text).ok_or_else(|| {
            format!("'{text}' is no type of service; write one such as _http._tcp, or _printer._sub._http._tcp")
        })
    }
}

impl ServiceType {
    fn parse(text: &str) -> Option<Self> {
        let text = text.strip_suffix('.').unwrap_or(text);
        let text = text.strip_suffix(".local").unwrap_or(text);
        let labels: Vec<&str> = text.split('.').collect();
        let [subtype @ .., service, protocol] = labels.as_slice() else { return None };
        let is_subtype = match subtype {
            [] => true,
            [_, marker] => marker.eq_ignore_ascii_case("_sub"),
            _ => false,
        };
        let is_name = |label: &str| label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
        let is_service = service.strip_prefix('_').is_some_and(|name| !name.is_empty() && is_name(name));
        let is_protocol = protocol.eq_ignore_ascii_case("_tcp") || protocol.eq_ignore_ascii_case("_udp");
        let of = |labels: &[&str]| Name::new(labels.iter().chain(&["local"]).copied());
        if !(is_subtype && is_service && is_protocol) {
            return None;
        }
        Some(Self { label: format!("{service}.{protocol}"), name: of(&[service, protocol])?, browsed: of(&labels)? })
    }
}

/// The fields of the details as written.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Fields {
    services: Vec<ServiceType>,
    instances: Option<Filter<InstancePattern>>,
    txt: Option<Filter<EntryPattern>>,
    #[serde(default)]
    discovery_timeout_seconds: Window<3>,
}

impl Details {
    /// Parses the details as the host passes them: as JSON, or `None` if they are neither YAML nor JSON.
    ///
    /// # Errors
    /// The first bad field.
    pub fn parse(json: Option<&str>) -> Result<Self, Problem> {
        let Fields { services, instances, txt, discovery_timeout_seconds } =
            read(json, "the details must be a mapping with the field 'services'")?;
        if !(1..=MAX_SERVICES).contains(&services.len()) {
            return Err(Problem::invalid("/services", format!("list 1 to {MAX_SERVICES} types of services")));
        }
        Ok(Self { services, instances, txt, window: discovery_timeout_seconds.0 })
    }

    /// Returns the names whose pointers are asked for.
    pub fn browsed(&self) -> BTreeSet<Name> {
        self.services.iter().map(|service| service.browsed.clone()).collect()
    }

    /// Returns what starts a round: a response that mentions one of the services, such as its announcement or goodbye.
    /// Questions of others do not count.
    pub fn triggers(&self) -> Vec<(String, String)> {
        let service = |service: &ServiceType| service.label.split('.').next().unwrap_or_default().to_owned();
        let trigger = |group, service: String| ("multicast".to_owned(), format!("{group}:{PORT} @2 80/80 {service}"));
        let of = |group| self.services.iter().map(move |of| trigger(group, service(of)));
        GROUPS.into_iter().flat_map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::name;
    use akri_handler::FilterAction;

    fn parsed(json: &str) -> Details {
        Details::parse(Some(json)).unwrap()
    }

    #[test]
    fn defaults_fill_every_optional_field() {
        let details = parsed(r#"{"services": ["_ipp._tcp"]}"#);
        let service =
            ServiceType { label: "_ipp._tcp".into(), name: name("_ipp._tcp.local"), browsed: name("_ipp._tcp.local") };
        let expected = Details { services: vec![service], instances: None, txt: None, window: Duration::from_secs(3) };
        assert_eq!(details, expected);
    }

    #[test]
    fn every_field_is_read() {
        let details = parsed(
            r#"{"services": ["_ipp._tcp.local.", "_color._sub._ipp._tcp"], "instances": {"items": ["Hall*"]},
                "txt": {"action": "Exclude", "items": ["duplex", "ty=Laser*"]}, "discoveryTimeoutSeconds": 30}"#,
        );
        assert_eq!(details.services[0].name, name("_ipp._tcp.local"));
        assert_eq!(details.services[1].name, name("_ipp._tcp.local"));
        assert_eq!(details.services[1].browsed, name("_color._sub._ipp._tcp.local"));
        assert_eq!(details.instances.unwrap().action, FilterAction::Include);
        assert_eq!(details.txt.unwrap().items.len(), 2);
        assert_eq!(details.window, Duration::from_secs(30));
    }

    #[test]
    fn responses_that_mention_a_service_start_a_round() {
        let triggers = parsed(r#"{"services": ["_ipp._tcp"]}"#).triggers();
        let values: Vec<&str> = triggers.iter().map(|(_, value)| value.as_str()).collect();
        assert_eq!(values, ["224.0.0.251:5353 @2 80/80 _ipp", "[ff02::fb]:5353 @2 80/80 _ipp"]);
        assert!(triggers.iter().all(|(kind, _)| kind == "multicast"));
    }

    #[test]
    fn bad_field_is_named() {
        let no_type = "is no type of service; write one such as _http._tcp, or _printer._sub._http._tcp";
        for (json, path, message) in [
            ("{}", "", "missing field `services`".to_owned()),
            ("[]", "", "the details must be a mapping with the field 'services'".to_owned()),
            (r#"{"services": []}"#, "/services", "list 1 to 16 types of services".to_owned()),
            (r#"{"services": ["_a._tcp", "http"]}"#, "/services/1", format!("'http' {no_type}")),
            (r#"{"services": ["http._tcp"]}"#, "/services/0", format!("'http._tcp' {no_type}")),
            (r#"{"services": ["_._tcp"]}"#, "/services/0", format!("'_._tcp' {no_type}")),
            (r#"{"services": ["_http._sctp"]}"#, "/services/0", format!("'_http._sctp' {no_type}")),
            (r#"{"services": ["_a._b._http._tcp"]}"#, "/services/0", format!("'_a._b._http._tcp' {no_type}")),
            (
                r#"{"services": ["_a._tcp"], "instances": {"items": [""]}}"#,
                "/instances/items/0",
                "the name of an instance is not empty; write one such as 'Hall printer', or 'Hall*'".to_owned(),
            ),
            (
                r#"{"services": ["_a._tcp"], "instances": ["Include", ["a"]]}"#,
                "/instances",
                "invalid type: sequence, expected a mapping such as {items: [...]}".to_owned(),
            ),
            (
                r#"{"services": ["_a._tcp"], "instances": {"items": []}}"#,
                "/instances",
                "without items it selects nothing; write {items: [...]}".to_owned(),
            ),
            (
                r#"{"services": ["_a._tcp"], "txt": {"items": ["=1"]}}"#,
                "/txt/items/0",
                "'=1' has no key; write KEY, or KEY=VALUE".to_owned(),
            ),
            (
                r#"{"services": ["_a._tcp"], "discoveryTimeoutSeconds": 31}"#,
                "/discoveryTimeoutSeconds",
                "answers are waited for 1 to 30 seconds, not 31".to_owned(),
            ),
        ] {
            let problem = Details::parse(Some(json)).unwrap_err();
            assert_eq!((problem.path.as_str(), problem.message), (path, message), "{json}");
        }
    }
}
