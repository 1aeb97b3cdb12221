//! ONVIF's device management and media services: what is asked and what the answers say (ONVIF Core 8, Media 5).

use std::net::IpAddr;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use quick_xml::escape::escape;
use serde::{Deserialize, Serialize};

use crate::details::WantedStream;
use crate::xml::Element;

/// The namespace of what is in the requests and answers of `ver10`.
const SCHEMA: &str = r#"xmlns="http://www.onvif.org/ver10/schema""#;
/// Characters of a value a camera gives about itself.
const MAX_VALUE: usize = 128;
/// Profiles and network interfaces of one camera that are looked at.
const MAX_ITEMS: usize = 64;

/// A question, as the body of a SOAP message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The element's name, by which people and documentation know it.
    pub name: &'static str,
    /// The body.
    pub body: String,
}

fn request(service: &str, name: &'static str, content: &str) -> Request {
    Request { name, body: format!(r#"<{name} xmlns="http://www.onvif.org/{service}/wsdl">{content}</{name}>"#) }
}

/// The camera's clock. Every camera should answer this without credentials.
pub fn get_system_date_and_time() -> Request {
    request("ver10/device", "GetSystemDateAndTime", "")
}

/// Who made the camera.
pub fn get_device_information() -> Request {
    request("ver10/device", "GetDeviceInformation", "")
}

/// MAC and IP addresses.
pub fn get_network_interfaces() -> Request {
    request("ver10/device", "GetNetworkInterfaces", "")
}

/// The scopes, for a camera that did not announce them.
pub fn get_scopes() -> Request {
    request("ver10/device", "GetScopes", "")
}

/// Where the other services are.
pub fn get_services() -> Request {
    request("ver10/device", "GetServices", "<IncludeCapability>false</IncludeCapability>")
}

/// The same, of cameras that are too old for [`get_services`].
pub fn get_capabilities() -> Request {
    request("ver10/device", "GetCapabilities", "<Category>Media</Category>")
}

/// The time in an answer to [`get_system_date_and_time`].
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

/// Who made a camera. What it does not say is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Information {
    /// The maker.
    pub manufacturer: String,
    /// The maker's name for it.
    pub model: String,
    /// The version of its software.
    pub firmware_version: String,
    /// The one on the label.
    pub serial_number: String,
    /// The version of its hardware.
    pub hardware_id: String,
}

/// What an answer to [`get_device_information`] says.
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
    /// As the camera writes it.
    pub mac: String,
    /// Its addresses, those of IPv4 first.
    pub addresses: Vec<IpAddr>,
}

/// What an answer to [`get_network_interfaces`] says of the interface with this address. Where none says it has it, as
/// behind address translation, that is the first with a MAC address.
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

/// The scopes in an answer to [`get_scopes`], with white space between them.
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

    /// What the camera can send.
    pub fn get_profiles(self) -> Request {
        request(self.service(), "GetProfiles", "")
    }

    /// Where the stream of a profile is, by RTSP.
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

/// Where the media service is, by an answer to [`get_services`]: the URL as the camera writes it.
pub fn media_service(body: &Element) -> Option<(Media, &str)> {
    let response = body.child("GetServicesResponse")?;
    [Media::One, Media::Two].into_iter().find_map(|media| {
        let namespace = format!("http://www.onvif.org/{}/wsdl", media.service());
        let is_it = |service: &&Element| service.text_at(&["Namespace"]) == Some(namespace.as_str());
        Some((media, response.all("Service").find(is_it)?.text_at(&["XAddr"])?))
    })
}

/// The same by an answer to [`get_capabilities`].
pub fn media_capability(body: &Element) -> Option<(Media, &str)> {
    Some((Media::One, body.text_at(&["GetCapabilitiesResponse", "Capabilities", "Media", "XAddr"])?))
}

/// The token of the wanted profile, by an answer to [`Media::get_profiles`].
///
/// # Errors
/// The names of the profiles there are.
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

/// The URI in an answer to [`Media::get_stream_uri`].
pub fn stream_uri(body: &Element) -> Option<&str> {
    let response = body.child("GetStreamUriResponse")?;
    response.text_at(&["MediaUri", "Uri"]).or_else(|| response.text_at(&["Uri"]))
}

/// A value fit for an environment variable.
fn plain(value: &str) -> String {
    value.chars().map(|character| if character.is_control() { ' ' } else { character }).take(MAX_VALUE).collect()
}

#[cfg(test)]
#[path = "device_service_tests.rs"]
mod tests;
