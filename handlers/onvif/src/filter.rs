//! Values that filters select cameras by, and their decision.

use std::fmt;
use std::net::IpAddr;

use akri_handler::Filter;
use serde::Deserialize;

use crate::announcement;

/// The decision of a filter, or of all filters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Decision {
    /// The camera is selected.
    Keep,
    /// Undecided: the filter is on a value that is not known.
    Unknown,
    /// The camera is rejected, whatever else becomes known.
    Drop,
}

/// Compares with the known values of a camera; `None` if there are none.
pub fn decision<T: PartialEq>(filter: &Filter<T>, values: Option<&[T]>) -> Decision {
    match values {
        None if !filter.items.is_empty() => Decision::Unknown,
        values if filter.selects(|item| values.unwrap_or_default().contains(item)) => Decision::Keep,
        _ => Decision::Drop,
    }
}

/// An IP address. An IPv4 address mapped into IPv6 equals the IPv4 address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Ip(IpAddr);

impl From<IpAddr> for Ip {
    fn from(address: IpAddr) -> Self {
        Self(address.to_canonical())
    }
}

impl TryFrom<String> for Ip {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let address = text.trim().parse::<IpAddr>();
        address.map(Self::from).map_err(|_| format!("'{text}' is no IP address; write one such as 192.168.1.20"))
    }
}

/// A MAC address, independent of case and separators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Mac([u8; 6]);

impl Mac {
    /// Parses twelve hexadecimal digits, optionally separated by `:`, `-` or `.`.
    pub fn parse(text: &str) -> Option<Self> {
        let digits: String = text.trim().chars().filter(|c| !matches!(c, ':' | '-' | '.')).collect();
        let is_mac = digits.len() == 12 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = is_mac.then(|| u64::from_str_radix(&digits, 16).ok())??;
        let [_, _, bytes @ ..] = number.to_be_bytes();
        Some(Self(bytes))
    }
}

impl TryFrom<String> for Mac {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text).ok_or_else(|| format!("'{text}' is no MAC address; write one such as 00:1a:2b:3c:4d:5e"))
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// An endpoint reference, see [`announcement::uuid`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Uuid(pub String);

impl TryFrom<String> for Uuid {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        announcement::uuid(&text).map(Self).ok_or_else(|| format!("'{text}' is no UUID of a camera"))
    }
}

/// A scope, such as `onvif://www.onvif.org/location/hall`, compared verbatim.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Scope(pub String);

impl TryFrom<String> for Scope {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        match text.trim() {
            scope if scope.is_empty() || scope.contains(char::is_whitespace) => {
                Err(format!("'{text}' is no scope; a scope is one URI without blanks in it"))
            }
            scope => Ok(Self(scope.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Decision::{Drop, Keep, Unknown};
    use akri_handler::FilterAction;

    use super::*;

    #[test]
    fn filter_decides_as_upstream_or_is_undecided() {
        let decision =
            |action, items: &[u8], values: Option<&[u8]>| decision(&Filter { action, items: items.to_vec() }, values);
        for (items, values, include, exclude) in [
            (&[1, 2][..], Some(&[2, 3][..]), Keep, Drop),
            (&[1, 2], Some(&[3]), Drop, Keep),
            (&[1, 2], Some(&[]), Drop, Keep),
            (&[1, 2], None, Unknown, Unknown),
            (&[], Some(&[1]), Drop, Keep),
            (&[], None, Drop, Keep),
        ] {
            assert_eq!(decision(FilterAction::Include, items, values), include, "{items:?} {values:?}");
            assert_eq!(decision(FilterAction::Exclude, items, values), exclude, "{items:?} {values:?}");
        }
    }

    #[test]
    fn any_rejecting_filter_rejects() {
        assert_eq!([Keep, Drop, Unknown].into_iter().max(), Some(Drop));
        assert_eq!([Unknown, Keep].into_iter().max(), Some(Unknown));
    }

    #[test]
    fn mac_addresses_compare_in_any_notation() {
        let mac = Mac::parse("00:1A:2b:3c:4d:5e").unwrap();
        assert_eq!(mac.to_string(), "00:1a:2b:3c:4d:5e");
        for text in ["00-1a-2b-3c-4d-5e", "001A2B3C4D5E", "001a.2b3c.4d5e", " 00:1a:2b:3c:4d:5e\n"] {
            assert_eq!(Mac::parse(text), Some(mac), "{text}");
        }
        for text in
            ["00:1a:2b:3c:4d", "00:1a:2b:3c:4d:5e:6f", "00:1a:2b:3c:4d:5g", "+0:1a:2b:3c:4d:5e", "é0:1a:2b:3c:4d:5"]
        {
            assert_eq!(Mac::parse(text), None, "{text}");
        }
    }

    #[test]
    fn ip_addresses_compare_in_any_notation() {
        let ip = |text: &str| Ip::try_from(text.to_owned());
        assert_eq!(ip("::ffff:10.0.0.1"), ip("10.0.0.1"));
        assert_eq!(ip("FE80::1"), ip("fe80:0::1"));
        for text in ["", "10.0.0", "10.0.0.1/24", "camera"] {
            assert!(ip(text).unwrap_err().contains("is no IP address"), "{text}");
        }
    }

    #[test]
    fn uuids_and_scopes_compare_as_announced() {
        assert_eq!(Uuid::try_from("urn:uuid:A-1".to_owned()), Ok(Uuid("a-1".into())));
        assert!(Uuid::try_from(" ".to_owned()).is_err());
        assert_eq!(Scope::try_from(" onvif://A ".to_owned()), Ok(Scope("onvif://A".into())));
        for text in ["", "a b"] {
            assert!(Scope::try_from(text.to_owned()).is_err());
        }
    }
}
