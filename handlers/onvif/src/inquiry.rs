//! The requests to one camera.

use std::net::{IpAddr, Ipv4Addr};
use std::pin::pin;
use std::time::Duration;

use futures::future::{Either, select};
use serde::{Deserialize, Serialize};

use crate::announcement::{self, Camera};
use crate::credentials::Credentials;
use crate::details::WantedStream;
use crate::device_service::{self as service, Information, Media, Request};
use crate::service_url::ServiceUrl;
use crate::session::{CallError, Session, Transport, TransportError};
use crate::xml::Element;

/// Maximum number of URLs tried per camera.
pub(crate) const MAX_TRIED: usize = 4;
/// Time limit for one camera. A slower one is retried in the next round and does not delay others.
pub(crate) const PER_CAMERA: Duration = Duration::from_secs(5);
/// Limit on the URI of a stream, in bytes.
const MAX_URI: usize = 1024;
/// Limit on a profile token, in bytes; ONVIF's ReferenceToken has 64 characters.
const MAX_TOKEN: usize = 256;

/// Optional facts to request.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// Scopes, if the camera does not announce them.
    pub scopes: bool,
    /// The URI of a stream.
    pub stream: Option<&'a WantedStream>,
}

/// The facts reported by a camera.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// The URL at which it responded.
    pub url: String,
    /// Set if it reported the time without credentials.
    pub is_open: bool,
    /// The MAC address, as the camera writes it.
    pub mac: Option<String>,
    /// Its IP address, if the URL contains a name.
    pub address: Option<String>,
    /// Manufacturer information.
    pub information: Information,
    /// Scopes that it did not announce.
    pub scopes: Option<Vec<String>>,
    /// The URI of the requested stream.
    pub stream: Option<String>,
}

/// The result of an inquiry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CameraReport {
    /// The facts.
    pub facts: Facts,
    /// Set if it requires credentials, or other ones.
    pub refused: bool,
    /// Set if the time did not suffice for all requests.
    pub is_partial: bool,
    /// The reason for a missing stream URI that was requested.
    pub no_stream: Option<String>,
}

/// Requests all facts from a camera, from the URL that was used before if it answers. Earlier facts stay where a request
/// fails.
///
/// # Errors
/// If the camera is unreachable or the connection is lost midway.
pub async fn ask<T: Transport>(
    transport: &T,
    camera: &Camera,
    earlier: &Facts,
    credentials: Option<&Credentials>,
    wanted: Wanted<'_>,
) -> Result<CameraReport, String> {
    let mut end = pin!(transport.sleep(PER_CAMERA));
    let tried = camera.tried(&earlier.url);
    let Either::Left((reached, _)) = select(pin!(reach(transport, tried, credentials)), &mut end).await else {
        return Err(format!("it does not answer within {PER_CAMERA:?}"));
    };
    let (session, url) = reached?;
    let facts = Facts { url: url.to_string(), is_open: session.is_open(), ..earlier.clone() };
    let mut inquiry =
        Inquiry { session, url, was_answered: true, report: CameraReport { facts, ..CameraReport::default() } };
    let asked = match select(pin!(inquiry.ask(wanted, camera.scopes.is_empty())), end).await {
        Either::Left((asked, _)) => asked,
        Either::Right(_) => Err(TransportError::TimedOut.into()),
    };
    match asked {
        Err(CallError::Transport(TransportError::TimedOut)) => inquiry.report.is_partial = true,
        asked => asked.map_err(|error| format!("{url}: {error}"))?,
    }
    Ok(inquiry.report)
}

/// Returns the first URL that responds.
///
/// # Errors
/// If none does.
pub async fn reach<'a, T: Transport>(
    transport: &'a T,
    urls: impl IntoIterator<Item = &'a ServiceUrl>,
    credentials: Option<&'a Credentials>,
) -> Result<(Session<'a, T>, &'a ServiceUrl), String> {
    let mut errors = Vec::new();
    for url in urls {
        match Session::open(transport, url, credentials).await {
            Ok(session) => return Ok((session, url)),
            Err(error) => errors.push(format!("{url}: {error}")),
        }
    }
    Err(errors.join("; "))
}

/// The state of an inquiry. Each request is a separate function, so that no response stays in memory during the next
/// request: many cameras are queried concurrently within the memory limit of a round.
struct Inquiry<'a, T> {
    session: Session<'a, T>,
    url: &'a ServiceUrl,
    /// Set if the last request for the stream was answered.
    was_answered: bool,
    report: CameraReport,
}

impl<T: Transport> Inquiry<'_, T> {
    async fn ask(&mut self, wanted: Wanted<'_>, is_without_scopes: bool) -> Result<(), CallError> {
        self.ask_information().await?;
        if self.report.refused {
            return Ok(()); // the same credentials again would be refused again, and count as an attack
        }
        self.ask_interfaces().await?;
        if wanted.scopes && is_without_scopes {
            self.ask_scopes().await?;
        }
        if let Some(stream) = wanted.stream {
            let stream = self.stream(stream).await;
            if self.was_answered {
                self.report.facts.stream = stream.as_ref().ok().cloned();
            }
            self.report.no_stream = stream.err();
        }
        Ok(())
    }

    async fn ask_information(&mut self) -> Result<(), CallError> {
        if let Some(body) = self.call(&service::get_device_information()).await? {
            self.report.facts.information = service::information(&body).unwrap_or_default();
        }
        Ok(())
    }

    async fn ask_interfaces(&mut self) -> Result<(), CallError> {
        let Some(body) = self.call(&service::get_network_interfaces()).await? else { return Ok(()) };
        let interface = service::interface(&body, self.url.ip());
        let address = interface.as_ref().and_then(|interface| interface.addresses.first());
        self.report.facts.address = address.filter(|_| self.url.ip().is_none()).map(ToString::to_string);
        self.report.facts.mac = interface.map(|interface| interface.mac);
        Ok(())
    }

    async fn ask_scopes(&mut self) -> Result<(), CallError> {
        if let Some(body) = self.call(&service::get_scopes()).await? {
            self.report.facts.scopes = service::scopes(&body).map(|list| announcement::scopes(&list));
        }
        Ok(())
    }

    /// Returns the URI of the stream, or the reason why there is none.
    async fn stream(&mut self, wanted: &WantedStream) -> Result<String, String> {
        let (media, url) = self.media_service().await?;
        let token = self.profile(media, &url, wanted).await?;
        let answer = self.answer(&url, &media.get_stream_uri(&token)).await?;
        let uri = service::stream_uri(&answer).and_then(without_user);
        match uri {
            None => Err("it gives no usable URI for its stream".to_owned()),
            Some(uri) if self.session.is_password_in(&uri) => {
                Err("the URI of its stream has the password in it".to_owned())
            }
            Some(uri) => Ok(uri),
        }
    }

    /// Returns the token of the wanted profile.
    async fn profile(&mut self, media: Media, url: &ServiceUrl, wanted: &WantedStream) -> Result<String, String> {
        let profiles = self.answer(url, &media.get_profiles()).await?;
        let token = service::profile(&profiles, wanted);
        let token = token.map_err(|names| format!("it has no such media profile, only: {}", names.join(", ")))?;
        if token.len() <= MAX_TOKEN { Ok(token.to_owned()) } else { Err("its profile has an endless token".to_owned()) }
    }

    async fn media_service(&mut self) -> Result<(Media, ServiceUrl), String> {
        let services = self.answer(self.url, &service::get_services()).await;
        if let Some(found) =
            services.ok().as_ref().and_then(service::media_service).and_then(|found| self.usable(found))
        {
            return Ok(found);
        }
        let capabilities = self.answer(self.url, &service::get_capabilities()).await?;
        let found = service::media_capability(&capabilities).and_then(|found| self.usable(found));
        found.ok_or_else(|| "it names no media service".to_owned())
    }

    /// Replaces an unspecified address in a URL by the camera's address.
    fn usable(&self, (media, url): (Media, &str)) -> Option<(Media, ServiceUrl)> {
        let reached = self.url.ip().unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        Some((media, ServiceUrl::announced(url, reached)?))
    }

    /// Sends an optional request to the device service; returns `None` if it fails.
    async fn call(&mut self, request: &Request) -> Result<Option<Element>, CallError> {
        match self.session.call(self.url, request).await {
            Ok(body) => Ok(Some(body)),
            Err(CallError::Refused) => {
                // Credentials that were accepted are right, and only lack the right to this.
                self.report.refused |= !self.session.is_accepted();
                Ok(None)
            }
            Err(CallError::Fault(_) | CallError::NotSoap { .. }) => Ok(None),
            Err(error @ CallError::Transport(_)) => Err(error),
        }
    }

    /// Sends a request to any service; returns the response, or a description of the failure.
    async fn answer(&mut self, url: &ServiceUrl, request: &Request) -> Result<Element, String> {
        let answer = self.session.call(url, request).await;
        self.was_answered = answer.is_ok();
        self.report.refused |= answer == Err(CallError::Refused);
        answer.map_err(|error| format!("asked {} at {url}, {error}", request.name))
    }
}

/// Removes user name and password from the URI of a stream.
fn without_user(uri: &str) -> Option<String> {
    let (scheme, rest) = uri.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit('@').next()?;
    let is_usable = !host.is_empty() && uri.len() <= MAX_URI && !uri.contains(|c: char| c.is_control() || c == ' ');
    is_usable.then(|| format!("{scheme}://{host}{}", rest.get(authority.len()..).unwrap_or_default()))
}

#[cfg(test)]
#[path = "inquiry_tests.rs"]
mod tests;
