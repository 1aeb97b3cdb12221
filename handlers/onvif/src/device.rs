//! Conversion of a camera to a device.

use crate::announcement::Camera;
use crate::details::{Details, IdentifyBy};
use crate::inquiry::Facts;
use crate::service_url::ServiceUrl;

/// A camera to report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// The UUID, or what upstream Akri has in its place.
    pub id: String,
    /// The UUID, by which a camera that is not reached is kept.
    pub origin: String,
    /// Names and values.
    pub properties: Vec<(String, String)>,
}

/// Returns the device for a camera. It has the URI of its stream if the details ask for that.
pub fn device(camera: &Camera, facts: &Facts, details: &Details) -> Device {
    let information = &facts.information;
    let address = address(camera, facts);
    let properties = [
        ("SERVICE_URL", Some(&facts.url)),
        ("UUID", Some(&camera.uuid)),
        ("IP_ADDRESS", address.as_ref()),
        ("MAC_ADDRESS", facts.mac.as_ref()),
        ("MANUFACTURER", Some(&information.manufacturer)),
        ("MODEL", Some(&information.model)),
        ("FIRMWARE_VERSION", Some(&information.firmware_version)),
        ("SERIAL_NUMBER", Some(&information.serial_number)),
        ("HARDWARE_ID", Some(&information.hardware_id)),
        ("STREAM_URI", facts.stream.as_ref().filter(|_| details.stream.is_some())),
    ];
    let known = properties.into_iter().filter_map(|(name, value)| Some((name, value.filter(|v| !v.is_empty())?)));
    let properties = known.map(|(name, value)| (format!("ONVIF_DEVICE_{name}"), value.clone())).collect();
    let (uuid, url) = (&camera.uuid, &facts.url);
    let id = match details.identify_by {
        IdentifyBy::Uuid => uuid.clone(),
        IdentifyBy::UrlAndUuid => format!("{url}-{uuid}"),
    };
    Device { id, origin: uuid.clone(), properties }
}

/// Returns the IP address of the camera.
fn address(camera: &Camera, facts: &Facts) -> Option<String> {
    let reached = camera.urls.iter().chain(&camera.answered).find(|url| url.to_string() == facts.url);
    reached.and_then(ServiceUrl::ip).map(|ip| ip.to_string()).or_else(|| facts.address.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device_service::Information;

    fn camera(url: &str) -> Camera {
        let urls = vec![ServiceUrl::parse(url).unwrap()];
        Camera { uuid: "a-1".into(), scopes: vec![], metadata_version: String::new(), urls, answered: None }
    }

    fn details(json: &str) -> Details {
        Details::parse(Some(json)).unwrap()
    }

    fn written(device: &Device) -> Vec<String> {
        device.properties.iter().map(|(name, value)| format!("{name}={value}")).collect()
    }

    #[test]
    fn silent_camera_has_its_announced_properties() {
        let url = "http://10.0.0.9/onvif/device_service";
        let device =
            device(&camera(url), &Facts { url: url.into(), ..Facts::default() }, &details(r#"{"streamUri": true}"#));
        assert_eq!(device.id, "a-1");
        let expected =
            [&format!("ONVIF_DEVICE_SERVICE_URL={url}"), "ONVIF_DEVICE_UUID=a-1", "ONVIF_DEVICE_IP_ADDRESS=10.0.0.9"];
        assert_eq!(written(&device), expected);
    }

    #[test]
    fn ids_of_upstream_akri_can_be_kept() {
        let url = "http://10.0.0.9/onvif/device_service";
        let facts = Facts { url: url.into(), ..Facts::default() };
        let device = device(&camera(url), &facts, &details(r#"{"identifyBy": "UrlAndUuid"}"#));
        assert_eq!((device.id, device.origin), (format!("{url}-a-1"), "a-1".to_owned()));
    }

    #[test]
    fn complete_camera_has_all_properties_in_order() {
        let url = "https://camera.example/onvif/device_service";
        let information = Information {
            manufacturer: "Acme".into(),
            model: "Dome".into(),
            firmware_version: "5".into(),
            serial_number: "S1".into(),
            hardware_id: "h".into(),
        };
        let facts = Facts {
            url: url.into(),
            is_open: true,
            mac: Some("00:1a".into()),
            address: Some("10.0.0.9".into()),
            information,
            scopes: None,
            stream: Some("rtsp://10.0.0.9/1".into()),
        };
        let all = device(&camera(url), &facts, &details(r#"{"streamUri": true}"#));
        let expected = [
            "SERVICE_URL=https://camera.example/onvif/device_service",
            "UUID=a-1",
            "IP_ADDRESS=10.0.0.9",
            "MAC_ADDRESS=00:1a",
            "MANUFACTURER=Acme",
            "MODEL=Dome",
            "FIRMWARE_VERSION=5",
            "SERIAL_NUMBER=S1",
            "HARDWARE_ID=h",
            "STREAM_URI=rtsp://10.0.0.9/1",
        ];
        assert_eq!(written(&all), expected.map(|property| format!("ONVIF_DEVICE_{property}")));
        assert_eq!(device(&camera(url), &facts, &details("{}")).properties, all.properties[..9]);
    }
}
