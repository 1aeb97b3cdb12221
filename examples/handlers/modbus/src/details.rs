//! The `discoveryDetails`.

use std::collections::BTreeSet;
use std::fmt;

use akri_handler::{Problem, read};
use serde::Deserialize;

/// The port of Modbus/TCP.
const PORT: u16 = 502;
/// Limit on servers, which are asked at once.
const MAX_SERVERS: usize = 64;
/// The ids of single units. Others are for all units, or reserved.
const UNITS: std::ops::RangeInclusive<u8> = 1..=247;

/// The details of one Configuration.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Details {
    /// The servers to ask.
    pub servers: BTreeSet<Server>,
    /// The units to ask each server for.
    #[serde(default = "first_unit")]
    pub unit_ids: BTreeSet<u8>,
}

fn first_unit() -> BTreeSet<u8> {
    [1].into()
}

/// The address or name of a server, and its port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct Server {
    /// An IPv4 address or a name.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl TryFrom<String> for Server {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let invalid = || format!("'{text}' is no server; write one such as 192.168.1.20, or plc.example:1502");
        let (host, port) = match text.split_once(':') {
            Some((host, port)) => (host, port.parse().map_err(|_| invalid())?),
            None => (text.as_str(), PORT),
        };
        let is_host = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        match !host.is_empty() && host.chars().all(is_host) {
            true => Ok(Self { host: host.to_ascii_lowercase(), port }),
            false => Err(invalid()),
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl Details {
    /// Parses the details as the host passes them.
    ///
    /// # Errors
    /// The first mistake.
    pub fn parse(json: Option<&str>) -> Result<Self, Problem> {
        let details: Self = read(json, "the details must be a mapping with the field 'servers'")?;
        if details.servers.len() > MAX_SERVERS {
            return Err(Problem::invalid("/servers", format!("list at most {MAX_SERVERS} servers")));
        }
        match details.unit_ids.iter().find(|unit| !UNITS.contains(unit)) {
            Some(unit) => Err(Problem::invalid("/unitIds", format!("{unit} is no id of a unit, which is 1 to 247"))),
            None => Ok(details),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_and_units_are_read() {
        let details =
            Details::parse(Some(r#"{"servers": ["PLC.example:1502", "192.0.2.1"], "unitIds": [2, 1]}"#)).unwrap();
        let servers: Vec<String> = details.servers.iter().map(Server::to_string).collect();
        assert_eq!(servers, ["192.0.2.1:502", "plc.example:1502"]);
        assert_eq!(details.unit_ids, [1, 2].into());
        assert_eq!(Details::parse(Some(r#"{"servers": []}"#)).unwrap().unit_ids, [1].into());
    }

    #[test]
    fn mistakes_are_located() {
        for (json, path) in [
            ("{}", ""),
            (r#"{"servers": ["a", ""]}"#, "/servers/1"),
            (r#"{"servers": ["a:b"]}"#, "/servers/0"),
            (r#"{"servers": ["[::1]:502"]}"#, "/servers/0"),
            (r#"{"servers": ["a"], "unitIds": [0]}"#, "/unitIds"),
            (r#"{"servers": ["a"], "unitIds": [256]}"#, "/unitIds/0"),
        ] {
            assert_eq!(Details::parse(Some(json)).unwrap_err().path, path, "{json}");
        }
    }
}
