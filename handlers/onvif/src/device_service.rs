//! Requests and responses of ONVIF's device management and media services (ONVIF Core 8, Media 5).

use std::net::IpAddr;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use quick_xml::escape::escape;
use serde::{Deserialize, Serialize};

use crate::details::WantedStream;
use crate::xml::Element;

/// The namespace of the types in requests and responses of `ver10`.
const SCHEMA: &str = r#"xmlns="http://www.onvif.org/ver10/schema""#;
/// Limit on a value reported by a camera, in characters.
const MAX_VALUE: usize = 128;
/// Limit on the profiles and network interfaces of one camera.
const MAX_ITEMS: usize = 64;

/// A request, as the body of a SOAP message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The name of the element.
    pub name: &'static str,
    /// The body.
    pub body: String,
}

fn request(service: &str, name: &'static str, content: &str) -> Request {
    Request { name, body: format!(r#"<{name} xmlns="http://www.onvif.org/{service}/wsdl">{content}</{name}>"#) }
}

/// Requests the camera's clock, which cameras should return without credentials.
pub fn get_system_date_and_time() -> Request {
    request("ver10/device", "GetSystemDateAndTime", "")
}

/// Requests manufacturer and model.
pub fn get_device_information() -> Request {
    request("ver10/device", "GetDeviceInformation", "")
}

/// Requests MAC and IP addresses.
pub fn get_network_interfaces() -> Request {
    request("ver10/device", "GetNetworkInterfaces", "")
}

/// Requests the scopes, for a camera that did not announce them.
pub fn get_scopes() -> Request {
    request("ver10/device", "GetScopes", "")
}

/// Requests the URLs of the other services.
pub fn get_services() -> Request {
    request("ver10/device", "GetServices", "<IncludeCapability>false</IncludeCapability>")
}

/// Like [`get_services`], for older cameras.
pub fn get_capabilities() -> Request {
    request("ver10/device", "GetCapabilities", "<Category>Media</Category>")
}

/// Returns the time in a response to [`get_system_date_and_time`].
pub fn clock(body: &Element) -> Option<Timestamp> {
    let utc = body.at(&["GetSystemDateAndTimeResponse", "SystemDateAndTime", "UTCDateTime"])?;
    let number = |part, unit| utc.text_at(&[part, unit])?.parse::<i16>().ok();
    let small = |part, unit| number(part, unit).and_then(|value| i8::try_from(value).ok());
    let time = DateTime::new(
        number("Date", "Year")?,
        small("Date", "Month")?,
        small("Date", "Day")?,
        small("Time", "Hour")?,
        small("Time", "Minute")?,
        small("Time", "Second")?,
        0,
    );
    Some(time.ok()?.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

/// Manufacturer information; missing values are empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Information {
    /// The manufacturer.
    pub manufacturer: String,
    /// The model name.
    pub model: String,
    /// The firmware version.
    pub firmware_version: String,
    /// The serial number.
    pub serial_number: String,
    /// The hardware version.
    pub hardware_id: String,
}

/// Returns the information in a response to [`get_device_information`].
pub fn information(body: &Element) -> Option<Information> {
    let response = body.child("GetDeviceInformationResponse")?;
    let value = |name: &str| response.text_at(&[name]).map(plain).unwrap_or_default();
    Some(Information {
        manufacturer: value("Manufacturer"),
        model: value("Model"),
        firmware_version: value("FirmwareVersion"),
        serial_number: value("SerialNumber"),
        hardware_id: value("HardwareId"),
    })
}

/// A network interface of a camera.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// The MAC address as the camera writes it.
    pub mac: String,
    /// Its addresses, those of IPv4 first.
    pub addresses: Vec<IpAddr>,
}

/// Returns the interface with this address in a response to [`get_network_interfaces`]. If none has it, as behind
/// address translation, the first one with a MAC address.
pub fn interface(body: &Element, reached: Option<IpAddr>) -> Option<Interface> {
    let response = body.child("GetNetworkInterfacesResponse")?;
    let all: Vec<Interface> = response.all("NetworkInterfaces").take(MAX_ITEMS).filter_map(read_interface).collect();
    let has_it = |interface: &&Interface| reached.is_some_and(|address| interface.addresses.contains(&address));
    all.iter().find(has_it).or(all.first()).cloned()
}

fn read_interface(interface: &Element) -> Option<Interface> {
    let mac = plain(interface.text_at(&["Info", "HwAddress"])?);
    let configurations = ["IPv4", "IPv6"].into_iter().filter_map(|family| interface.at(&[family, "Config"]));
    let addresses = configurations.flat_map(|configuration| &configuration.children);
    let addresses = addresses.filter_map(|entry| entry.text_at(&["Address"])?.parse().ok());
    Some(Interface { mac, addresses: addresses.take(MAX_ITEMS).collect() })
}

/// Returns the scopes in a response to [`get_scopes`], separated by white space.
pub fn scopes(body: &Element) -> Option<String> {
    let response = body.child("GetScopesResponse")?;
    let items: Vec<&str> = response.all("Scopes").filter_map(|scope| scope.text_at(&["ScopeItem"])).collect();
    Some(items.join(" "))
}

/// The two versions of the media service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Media {
    /// `ver10`, which most cameras have.
    One,
    /// `ver20`, the only one of some newer cameras (profile T).
    Two,
}

impl Media {
    fn service(self) -> &'static str {
        match self {
            Self::One => "ver10/media",
            Self::Two => "ver20/media",
        }
    }

    /// Requests the media profiles.
    pub fn get_profiles(self) -> Request {
        request(self.service(), "GetProfiles", "")
    }

    /// Requests the RTSP URI of a profile's stream.
    pub fn get_stream_uri(self, token: &str) -> Request {
        let token = escape(token);
        let content = match self {
            Self::One => format!(
                "<StreamSetup><Stream {SCHEMA}>RTP-Unicast</Stream><Transport {SCHEMA}><Protocol>RTSP</Protocol>\
                </Transport>\
                 </StreamSetup><ProfileToken>{token}</ProfileToken>"
            ),
            Self::Two => format!("<Protocol>RTSP</Protocol><ProfileToken>{token}</ProfileToken>"),
        };
        request(self.service(), "GetStreamUri", &content)
    }
}

/// Returns the URL of the media service in a response to [`get_services`], as the camera writes it.
pub fn media_service(body: &Element) -> Option<(Media, &str)> {
    let response = body.child("GetServicesResponse")?;
    [Media::One, Media::Two].into_iter().find_map(|media| {
        let namespace = format!("http://www.onvif.org/{}/wsdl", media.service());
        let is_it = |service: &&Element| service.text_at(&["Namespace"]) == Some(namespace.as_str());
        Some((media, response.all("Service").find(is_it)?.text_at(&["XAddr"])?))
    })
}

/// Like [`media_service`], for a response to [`get_capabilities`].
pub fn media_capability(body: &Element) -> Option<(Media, &str)> {
    Some((Media::One, body.text_at(&["GetCapabilitiesResponse", "Capabilities", "Media", "XAddr"])?))
}

/// Returns the token of the wanted profile in a response to [`Media::get_profiles`].
///
/// # Errors
/// The names of the available profiles.
pub fn profile<'a>(body: &'a Element, wanted: &WantedStream) -> Result<&'a str, Vec<&'a str>> {
    let profiles = body.child("GetProfilesResponse").into_iter().flat_map(|response| response.all("Profiles"));
    let named = |profile: &'a Element| Some((profile.attribute("token")?, profile.text_at(&["Name"])));
    let profiles: Vec<(&str, Option<&str>)> = profiles.take(MAX_ITEMS).filter_map(named).collect();
    let is_wanted = |(token, name): &&(&str, Option<&str>)| match wanted {
        WantedStream::First => true,
        WantedStream::Profile(wanted) => token == wanted || *name == Some(wanted),
    };
    let names = || profiles.iter().map(|(token, name)| name.unwrap_or(token)).collect();
    profiles.iter().find(is_wanted).map(|(token, _)| *token).ok_or_else(names)
}

/// Returns the URI in a response to [`Media::get_stream_uri`].
pub fn stream_uri(body: &Element) -> Option<&str> {
    let response = body.child("GetStreamUriResponse")?;
    response.text_at(&["MediaUri", "Uri"]).or_else(|| response.text_at(&["Uri"]))
}

/// Sanitizes a value for use in an environment variable.
fn plain(value: &str) -> String {
    value.chars().map(|character| if character.is_control() { ' ' } else { character }).take(MAX_VALUE).collect()
}

#[cfg(test)]
#[path = "device_service_tests.rs"]
mod tests;
