//! URLs of OPC UA servers: `opc.tcp://host:port/path` (OPC 10000-6 §7.1.3).
//!
//! Parsed here since servers use URLs that RFC 3986 does not allow, such as blanks in the path, and since the path must
//! be returned to the server unchanged.

use std::fmt::{self, Display, Formatter};
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// The default port, registered with IANA.
const DEFAULT_PORT: u16 = 4840;

/// Limit on a URL, in bytes. With another host and a port it is still shorter than what servers accept (OPC 10000-6
/// §7.1.2.3: less than 4,096 bytes) and than the host's limit on properties.
const MAX_LENGTH: usize = 2048;

/// Limit on a host name in DNS.
const MAX_NAME: usize = 253;

/// The URL of a server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Url {
    /// The machine.
    pub host: Host,
    /// Its TCP port.
    pub port: u16,
    /// Everything after the port, verbatim: empty, or beginning with `/`, `?` or `#`.
    path: String,
}

/// A machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    /// By its address.
    Address(IpAddr),
    /// By a name.
    Name(String),
}

/// The error of an invalid URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not `opc.tcp`.
    #[error("it has to begin with 'opc.tcp://'")]
    Scheme,
    /// No host, or an invalid one.
    #[error("'{0}' is neither a host name nor an IP address")]
    Host(String),
    /// Not a number from 1 to 65535.
    #[error("'{0}' is not a port from 1 to 65535")]
    Port(String),
    /// A user name or password.
    #[error("it must not hold a user name: brokers get credentials otherwise")]
    UserInfo,
    /// A control character.
    #[error("it holds a control character")]
    Control,
    /// Too long.
    #[error("it is longer than {MAX_LENGTH} bytes")]
    TooLong,
}

impl Url {
    /// Returns the same port and path at another host.
    pub fn at(&self, host: &Host) -> Self {
        Self { host: host.clone(), port: self.port, path: self.path.clone() }
    }
}

impl Host {
    /// Returns whether the host is a loopback name or address, or unspecified.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Name(name) => name.eq_ignore_ascii_case("localhost"),
            Self::Address(address) => address.is_loopback() || address.is_unspecified(),
        }
    }

    /// Returns whether the host is the unspecified address, on which servers listen.
    pub fn is_unspecified(&self) -> bool {
        matches!(self, Self::Address(address) if address.is_unspecified())
    }
}

impl FromStr for Url {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if text.len() > MAX_LENGTH {
            return Err(Error::TooLong);
        }
        if text.contains(char::is_control) {
            return Err(Error::Control);
        }
        let scheme_end = text.find("://").filter(|end| text.get(..*end).is_some_and(is_scheme));
        let rest = scheme_end.and_then(|end| text.get(end + 3..)).ok_or(Error::Scheme)?;
        let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err(Error::UserInfo);
        }
        let (host, port) = authority_parts(authority)?;
        Ok(Self { host, port, path: path.to_owned() })
    }
}

fn is_scheme(text: &str) -> bool {
    text.eq_ignore_ascii_case("opc.tcp")
}

fn authority_parts(authority: &str) -> Result<(Host, u16), Error> {
    let no_host = || Error::Host(authority.to_owned());
    if let Some(rest) = authority.strip_prefix('[') {
        let (address, port) = rest.split_once(']').ok_or_else(no_host)?;
        let address: Ipv6Addr = address.parse().map_err(|_| no_host())?;
        return Ok((Host::Address(address.into()), port_behind(port)?));
    }
    let (host, port) = authority.split_at(authority.find(':').unwrap_or(authority.len()));
    Ok((host_named(host).ok_or_else(no_host)?, port_behind(port)?))
}

fn host_named(text: &str) -> Option<Host> {
    if let Ok(address) = text.parse() {
        return Some(Host::Address(address));
    }
    // `_` is not allowed in DNS host names, but common in Windows machine names.
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_name = (1..=MAX_NAME).contains(&text.len()) && text.chars().all(fits) && !text.starts_with(['.', '-']);
    is_name.then(|| Host::Name(text.to_owned()))
}

/// Parses the port in `:port`; the default if the text is empty.
fn port_behind(text: &str) -> Result<u16, Error> {
    if text.is_empty() {
        return Ok(DEFAULT_PORT);
    }
    let digits = text.strip_prefix(':').filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()));
    let port = digits.and_then(|digits| digits.parse().ok()).filter(|port| *port > 0);
    port.ok_or_else(|| Error::Port(text.trim_start_matches(':').to_owned()))
}

impl Display for Url {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "opc.tcp://{}:{}{}", self.host, self.port, self.path)
    }
}

impl Display for Host {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
            Self::Address(address) => write!(f, "{address}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<String, String> {
        text.parse::<Url>().map(|url| url.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn urls_are_parsed_as_servers_write_them() {
        for (text, url) in [
            ("opc.tcp://localhost:4840/", "opc.tcp://localhost:4840/"),
            ("opc.tcp://plc-7.example.com:4841", "opc.tcp://plc-7.example.com:4841"),
            ("OPC.TCP://Plant_PC:62541/UA/Simulation Server?x#y", "opc.tcp://Plant_PC:62541/UA/Simulation Server?x#y"),
            ("opc.tcp://192.0.2.7", "opc.tcp://192.0.2.7:4840"),
            ("opc.tcp://192.0.2.7:65535?x", "opc.tcp://192.0.2.7:65535?x"),
            ("opc.tcp://[::1]:4840/a", "opc.tcp://[::1]:4840/a"),
            ("opc.tcp://[2001:DB8::7]", "opc.tcp://[2001:db8::7]:4840"),
            ("opc.tcp://host:4840/a@b:c", "opc.tcp://host:4840/a@b:c"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(url));
            assert_eq!(read(url).as_deref(), Ok(url), "what is written is read again");
        }
    }

    #[test]
    fn invalid_urls_are_explained() {
        let long = format!("opc.tcp://{}:4840", "a".repeat(254));
        for (text, error) in [
            ("", "it has to begin with 'opc.tcp://'"),
            ("localhost:4840", "it has to begin with 'opc.tcp://'"),
            ("http://localhost:4840/", "it has to begin with 'opc.tcp://'"),
            ("opc.tcp:/localhost", "it has to begin with 'opc.tcp://'"),
            ("opc.https://localhost", "it has to begin with 'opc.tcp://'"),
            ("opc.tcp://", "'' is neither a host name nor an IP address"),
            ("opc.tcp:///path", "'' is neither a host name nor an IP address"),
            ("opc.tcp://:4840", "':4840' is neither a host name nor an IP address"),
            ("opc.tcp://a b:4840", "'a b:4840' is neither a host name nor an IP address"),
            ("opc.tcp://[::1:4840", "'[::1:4840' is neither a host name nor an IP address"),
            ("opc.tcp://[fe80::1%eth0]:4840", "'[fe80::1%eth0]:4840' is neither a host name nor an IP address"),
            ("opc.tcp://-a:4840", "'-a:4840' is neither a host name nor an IP address"),
            ("opc.tcp://host:", "'' is not a port from 1 to 65535"),
            ("opc.tcp://host:0", "'0' is not a port from 1 to 65535"),
            ("opc.tcp://host:65536", "'65536' is not a port from 1 to 65535"),
            ("opc.tcp://host:+1", "'+1' is not a port from 1 to 65535"),
            ("opc.tcp://host:48x0/", "'48x0' is not a port from 1 to 65535"),
            ("opc.tcp://::1:4840", "'::1:4840' is neither a host name nor an IP address"),
            ("opc.tcp://[::1]4840", "'4840' is not a port from 1 to 65535"),
            ("opc.tcp://me:secret@host:4840", "it must not hold a user name: brokers get credentials otherwise"),
            ("opc.tcp://host:4840/\n", "it holds a control character"),
        ] {
            assert_eq!(read(text), Err(error.to_owned()), "{text}");
        }
        assert!(read(&long).unwrap_err().ends_with("is neither a host name nor an IP address"));
        let long = format!("opc.tcp://host/{}", "a".repeat(4096));
        assert_eq!(long.parse::<Url>(), Err(Error::TooLong));
    }

    #[test]
    fn loopback_names_are_recognized() {
        for (host, local, unspecified) in [
            ("192.0.2.7", false, false),
            ("[2001:db8::7]", false, false),
            ("127.0.0.1", true, false),
            ("[::1]", true, false),
            ("LocalHost", true, false),
            ("0.0.0.0", true, true),
            ("[::]", true, true),
            ("plc", false, false),
        ] {
            let host = format!("opc.tcp://{host}").parse::<Url>().unwrap().host;
            assert_eq!((host.is_local(), host.is_unspecified()), (local, unspecified), "{host}");
        }
    }

    #[test]
    fn url_host_can_be_replaced() {
        let server: Url = "opc.tcp://plc:4841/a".parse().unwrap();
        let lds: Url = "opc.tcp://192.0.2.7:4840/".parse().unwrap();
        assert_eq!(server.at(&lds.host).to_string(), "opc.tcp://192.0.2.7:4841/a");
    }
}
