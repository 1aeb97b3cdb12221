//! The combined decision of all filters.

use akri_handler::Filter;

use crate::announcement::Camera;
use crate::details::Details;
use crate::filter::{self, Decision, Ip, Mac, Scope, Uuid};
use crate::inquiry::Facts;
use crate::service_url::ServiceUrl;

/// Returns the combined decision, with the facts if they are known.
pub fn decision(details: &Details, camera: &Camera, facts: Option<&Facts>) -> Decision {
    decisions(details, camera, facts).into_iter().map(|(_, decision)| decision).max().unwrap_or(Decision::Keep)
}

/// Returns the fact whose filter rejects the camera.
pub fn rejecting(details: &Details, camera: &Camera, facts: Option<&Facts>) -> &'static str {
    let decisions = decisions(details, camera, facts);
    decisions.into_iter().find(|(_, decision)| *decision == Decision::Drop).map_or("nothing", |(what, _)| what)
}

/// Describes the unknown facts that filters depend on.
pub fn unknown(details: &Details, camera: &Camera, facts: &Facts) -> &'static str {
    let decisions = decisions(details, camera, Some(facts));
    decisions.into_iter().find(|(_, decision)| *decision == Decision::Unknown).map_or("nothing", |(what, _)| what)
}

fn decisions(details: &Details, camera: &Camera, facts: Option<&Facts>) -> [(&'static str, Decision); 4] {
    let addresses = addresses(camera, facts);
    let mac = facts.and_then(|facts| Mac::parse(facts.mac.as_deref()?));
    let scopes = if camera.scopes.is_empty() { facts.and_then(|f| f.scopes.as_deref()) } else { Some(&*camera.scopes) };
    let scopes: Option<Vec<Scope>> = scopes.map(|scopes| scopes.iter().cloned().map(Scope).collect());
    [
        ("UUID", one(details.uuids.as_ref(), Some(&[Uuid(camera.uuid.clone())]))),
        ("scopes", one(details.scopes.as_ref(), scopes.as_deref())),
        ("IP address", one(details.ip_addresses.as_ref(), Some(&*addresses).filter(|all| !all.is_empty()))),
        ("MAC address", one(details.mac_addresses.as_ref(), mac.as_ref().map(std::slice::from_ref))),
    ]
}

fn one<T: PartialEq>(filter: Option<&Filter<T>>, values: Option<&[T]>) -> Decision {
    filter.map_or(Decision::Keep, |filter| filter::decision(filter, values))
}

/// Returns the announced addresses, or the reported one if only names are announced.
fn addresses(camera: &Camera, facts: Option<&Facts>) -> Vec<Ip> {
    let announced = camera.urls.iter().filter_map(ServiceUrl::ip);
    let facts_with = facts.and_then(|facts| facts.address.as_ref()?.parse().ok());
    announced.chain(facts_with).map(Ip::from).collect()
}

#[cfg(test)]
mod tests {
    use super::Decision::{Drop, Keep, Unknown};
    use super::*;

    fn details(json: &str) -> Details {
        Details::parse(Some(json)).unwrap()
    }

    fn camera(urls: &[&str], scopes: &[&str]) -> Camera {
        let sender = "10.0.0.9".parse().unwrap();
        Camera {
            uuid: "a-1".into(),
            scopes: scopes.iter().map(|scope| (*scope).to_owned()).collect(),
            metadata_version: String::new(),
            urls: urls.iter().map(|url| ServiceUrl::announced(url, sender).unwrap()).collect(),
            answered: None,
        }
    }

    fn facts_with(mac: Option<&str>) -> Facts {
        Facts { mac: mac.map(str::to_owned), ..Facts::default() }
    }

    /// Returns the decisions before a query, with a MAC address, and after a query without one.
    fn decisions_of(json: &str) -> [Decision; 3] {
        let camera = camera(&["http://10.0.0.9/", "http://192.168.1.9/"], &["onvif://x", "onvif://y"]);
        let (mac, none) = (facts_with(Some("00:1A:2B:3C:4D:5E")), facts_with(None));
        [None, Some(&mac), Some(&none)].map(|facts| decision(&details(json), &camera, facts))
    }

    #[test]
    fn announced_facts_decide_before_any_query() {
        for (json, expected) in [
            ("{}", Keep),
            (r#"{"uuids": {"items": ["urn:uuid:A-1"]}}"#, Keep),
            (r#"{"uuids": {"items": ["a-2"]}}"#, Drop),
            (r#"{"uuids": {"action": "Exclude", "items": ["a-1"]}}"#, Drop),
            (r#"{"scopes": {"items": ["onvif://z", "onvif://y"]}}"#, Keep),
            (r#"{"scopes": {"items": ["onvif://X"]}}"#, Drop),
            (r#"{"scopes": {"action": "Exclude", "items": ["onvif://x"]}}"#, Drop),
            (r#"{"ipAddresses": {"items": ["192.168.1.9"]}}"#, Keep),
            (r#"{"ipAddresses": {"items": ["192.168.1.8"]}}"#, Drop),
            (r#"{"ipAddresses": {"action": "Exclude", "items": ["192.168.1.9"]}}"#, Drop),
            (r#"{"macAddresses": {"action": "Exclude", "items": []}}"#, Keep),
        ] {
            assert_eq!(decisions_of(json), [expected; 3], "{json}");
        }
    }

    #[test]
    fn mac_filter_requires_a_query() {
        let include = r#"{"macAddresses": {"items": ["00-1a-2b-3c-4d-5e"]}}"#;
        assert_eq!(decisions_of(include), [Unknown, Keep, Unknown]);
        let exclude = r#"{"macAddresses": {"action": "Exclude", "items": ["001a2b3c4d5e"]}}"#;
        assert_eq!(decisions_of(exclude), [Unknown, Drop, Unknown]);
        let other = r#"{"macAddresses": {"items": ["00:00:00:00:00:01"]}, "uuids": {"items": ["b"]}}"#;
        assert_eq!(decisions_of(other), [Drop; 3]);
        assert_eq!(
            unknown(&details(include), &camera(&["http://10.0.0.9/"], &[]), &facts_with(Some("garbage"))),
            "MAC address"
        );
    }

    #[test]
    fn unannounced_scopes_and_addresses_can_be_queried() {
        let scopes = details(r#"{"scopes": {"items": ["onvif://x"]}}"#);
        let camera = camera(&["http://camera.example/"], &[]);
        assert_eq!(decision(&scopes, &camera, None), Unknown);
        assert_eq!(unknown(&scopes, &camera, &facts_with(None)), "scopes");
        for (found, expected) in [(vec![], Drop), (vec!["onvif://x".to_owned()], Keep)] {
            let facts = Facts { scopes: Some(found), ..Facts::default() };
            assert_eq!(decision(&scopes, &camera, Some(&facts)), expected);
        }
        let addresses = details(r#"{"ipAddresses": {"items": ["10.0.0.9"]}}"#);
        assert_eq!(decision(&addresses, &camera, None), Unknown);
        assert_eq!(unknown(&addresses, &camera, &facts_with(None)), "IP address");
        let facts = Facts { address: Some("10.0.0.9".into()), ..Facts::default() };
        assert_eq!(decision(&addresses, &camera, Some(&facts)), Keep);
    }
}
