//! Pull and push, in the part of the distribution specification that they need.

use std::sync::Arc;

use akri_model::image::{ImageReference, PinnedImage, Repository, Sha256Digest};
use akri_model::signature::TrustedKey;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, LOCATION, WWW_AUTHENTICATE};
use http::{HeaderValue, Method, Request, StatusCode, Uri};
use secrecy::ExposeSecret as _;
use tokio::time::timeout;

use crate::RegistryError::{self, Failed};
use crate::address::{host_of, join, may_be_read, origin};
use crate::auth::{Challenge, authorization, challenge};
use crate::credentials::Basic;
use crate::http::{Answer, Http, Upload, outgoing};
use crate::manifest::{self, Layer, MANIFEST_TYPE, MAX_COMPONENT, MAX_MANIFEST, check_manifest, digest_of, shortened};
use crate::signature::{ANNOTATION, MAX_PAYLOAD, MAX_SIGNATURES, PAYLOAD_TYPE, names};
use crate::{Credentials, Progress, Settings, Signature, verify};

/// Types of manifests. An index is refused, but the registry has to say that it is one.
const ACCEPTED: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, \
                        application/vnd.docker.distribution.manifest.v2+json";

/// Limit on the response of a token server, in bytes.
const MAX_TOKEN_RESPONSE: u64 = 64 << 10;

/// A pulled image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulled {
    /// The manifest, which has the digest of the image.
    pub manifest: Vec<u8>,
    /// The component, which has the digest of the manifest's layer.
    pub component: Vec<u8>,
}

/// A client for registries.
#[derive(Debug, Clone)]
pub struct Client {
    http: Http,
}

impl Client {
    /// Sets up a client.
    ///
    /// # Errors
    /// If the certificates of additional authorities are unusable.
    pub fn new(settings: &Settings) -> Result<Self, RegistryError> {
        Ok(Self { http: Http::new(settings)? })
    }

    /// Pulls an image, after `reserve` agreed to the layer that its manifest announces; what that returns is held until the
    /// image is returned with it.
    pub async fn pull<T, E: From<RegistryError>, F: Future<Output = Result<T, E>>>(
        &self,
        image: &PinnedImage,
        credentials: &Credentials,
        progress: &Progress,
        reserve: impl FnOnce(&Layer) -> F,
    ) -> Result<(Pulled, T), E> {
        let mut session = self.session(&image.repository, credentials, "pull");
        let digest = image.digest.to_string();
        let manifest = self.within_limit(session.manifest(&digest, Some(&image.digest))).await?;
        let named = |reason| RegistryError::Manifest(format!("{image}: {reason}"));
        let layer = check_manifest(&manifest).map_err(named)?;
        let reserved = reserve(&layer).await?; // this waits for the pulls of others
        let component = self.within_limit(session.component(&layer, progress)).await;
        progress.end();
        Ok((Pulled { manifest, component: component? }, reserved))
    }

    /// Returns the image that a reference stands for now.
    pub async fn resolve(
        &self,
        reference: &ImageReference,
        credentials: &Credentials,
    ) -> Result<PinnedImage, RegistryError> {
        let digest = match &reference.digest {
            Some(digest) => digest.clone(),
            None => {
                let mut session = self.session(&reference.repository, credentials, "pull");
                digest_of(&session.manifest(reference.tag.as_deref().unwrap_or("latest"), None).await?)
            }
        };
        Ok(PinnedImage { repository: reference.repository.clone(), digest })
    }

    /// Returns the signatures of an image of which one is valid for one of the keys.
    pub async fn signatures(
        &self,
        image: &PinnedImage,
        keys: &[TrustedKey],
        credentials: &Credentials,
    ) -> Result<Vec<Signature>, RegistryError> {
        let mut session = self.session(&image.repository, credentials, "pull");
        match self.within_limit(session.signatures(image)).await {
            Err(RegistryError::NotFound(_)) => {
                Err(RegistryError::Signature(format!("{image} is not signed; it has to be with {}", names(keys))))
            }
            Ok(found) if verify(&found, &image.digest, keys).is_none() => {
                Err(RegistryError::Signature(format!("no signature of {image} is valid for {}", names(keys))))
            }
            found => found,
        }
    }

    /// Pushes a component, and returns its image. Without a tag the image can be had by its digest only.
    pub async fn push(
        &self,
        reference: &ImageReference,
        component: Vec<u8>,
        (exports, imports): (&[String], &[String]),
        credentials: &Credentials,
        progress: &Arc<Progress>,
    ) -> Result<PinnedImage, RegistryError> {
        if component.len() as u64 > MAX_COMPONENT {
            return Err(Failed(format!("the component has {} bytes, more than {MAX_COMPONENT}", component.len())));
        }
        let packed = manifest::pack(&component, exports, imports).map_err(|error| Failed(error.to_string()))?;
        let digest = digest_of(&packed.manifest);
        let pushing = async {
            let mut session = self.session(&reference.repository, credentials, "pull,push");
            progress.begin(component.len() as u64);
            session.upload(component.into(), Some(progress)).await?;
            session.upload(packed.config.into(), None).await?;
            let name = reference.tag.clone().unwrap_or_else(|| digest.to_string());
            session.put_manifest(&name, packed.manifest.into()).await
        };
        let pushed = self.within_limit(pushing).await;
        progress.end();
        pushed?;
        Ok(PinnedImage { repository: reference.repository.clone(), digest })
    }

    /// Awaits a whole transfer.
    async fn within_limit<T>(
        &self,
        transfer: impl Future<Output = Result<T, RegistryError>>,
    ) -> Result<T, RegistryError> {
        let limit = self.http.limits.total;
        let too_long = |_| Failed(format!("the transfer took longer than {limit:?}"));
        timeout(limit, transfer).await.map_err(too_long)?
    }

    fn session<'a>(
        &'a self,
        repository: &'a Repository,
        credentials: &'a Credentials,
        actions: &'a str,
    ) -> Session<'a> {
        let insecure = self.http.insecure_beside(repository.registry());
        let basic = credentials.of(repository);
        Session { http: &self.http, repository, actions, basic, insecure, authorization: None }
    }
}

/// Requests to one repository, with the authorization that the first of them got.
struct Session<'a> {
    http: &'a Http,
    repository: &'a Repository,
    actions: &'a str,
    basic: Option<&'a Basic>,
    /// The registries that may be reached without TLS, if this one is.
    insecure: &'a [String],
    authorization: Option<HeaderValue>,
}

impl Session<'_> {
    fn uri(&self, kind: &str, name: &str) -> Result<Uri, RegistryError> {
        self.http.address(self.repository.registry(), &format!("/v2/{}/{kind}/{name}", self.repository.path()))
    }

    /// Reads a manifest. Without a digest it is whatever the name stands for now.
    async fn manifest(&mut self, name: &str, wanted: Option<&Sha256Digest>) -> Result<Vec<u8>, RegistryError> {
        let mut request = outgoing(Method::GET, self.uri("manifests", name)?, Upload::default());
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static(ACCEPTED));
        let separator = if wanted.is_some() { '@' } else { ':' };
        let what = format!("{}{separator}{name}", self.repository);
        let answer = self.succeed(request).await;
        let answer = answer.map_err(|e| if e.is_not_found() { RegistryError::NotFound(what) } else { e })?;
        let manifest = self.http.read(answer, MAX_MANIFEST, None).await?;
        self.check("the manifest", &manifest, wanted)?;
        Ok(manifest)
    }

    async fn blob(&mut self, digest: &Sha256Digest) -> Result<Answer, RegistryError> {
        let uri = self.uri("blobs", &digest.to_string())?;
        self.succeed(outgoing(Method::GET, uri, Upload::default())).await
    }

    async fn component(&mut self, layer: &Layer, progress: &Progress) -> Result<Vec<u8>, RegistryError> {
        let answer = self.blob(&layer.digest).await?;
        progress.begin(layer.size.max(1));
        let component = self.http.read(answer, layer.size, Some(progress)).await?;
        if component.len() as u64 != layer.size {
            let sizes = format!("the component has {} bytes, its manifest says {}", component.len(), layer.size);
            return Err(RegistryError::Mismatch(sizes));
        }
        self.check("the component", &component, Some(&layer.digest))?;
        Ok(component)
    }

    fn check(&self, what: &str, content: &[u8], wanted: Option<&Sha256Digest>) -> Result<(), RegistryError> {
        let Some(wanted) = wanted else { return Ok(()) };
        let actual = digest_of(content);
        if actual == *wanted {
            return Ok(());
        }
        let registry = self.repository.registry();
        Err(RegistryError::Mismatch(format!("{what} that {registry} sent has digest {actual}, not {wanted}")))
    }

    /// Reads the signatures of an image, which cosign keeps under a tag made of its digest.
    async fn signatures(&mut self, image: &PinnedImage) -> Result<Vec<Signature>, RegistryError> {
        let tag = format!("sha256-{}.sig", image.digest.hex());
        let manifest = self.manifest(&tag, None).await?;
        let named = |reason| RegistryError::Signature(format!("the signatures of {image} can't be read: {reason}"));
        let mut found = Vec::new();
        for layer in manifest::read(&manifest).map_err(named)?.layers.into_iter().take(MAX_SIGNATURES) {
            let signature = layer.annotations.get(ANNOTATION).and_then(|value| value.as_str());
            let Some(signature) = signature.filter(|_| layer.media_type == PAYLOAD_TYPE) else { continue };
            let digest = layer.digest().map_err(named)?;
            let answer = self.blob(&digest).await?;
            let payload = self.http.read(answer, MAX_PAYLOAD, None).await?;
            self.check("a signed payload", &payload, Some(&digest))?;
            let payload = String::from_utf8_lossy(&payload).into_owned();
            found.push(Signature { payload, signature: signature.to_owned() });
        }
        Ok(found)
    }

    /// Uploads a blob, unless the registry has it.
    async fn upload(&mut self, bytes: Bytes, progress: Option<&Arc<Progress>>) -> Result<(), RegistryError> {
        let digest = digest_of(&bytes);
        let head = outgoing(Method::HEAD, self.uri("blobs", &digest.to_string())?, Upload::default());
        match self.succeed(head).await {
            Ok(_) => return Ok(()),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
        let start = outgoing(Method::POST, self.uri("blobs", "uploads/")?, Upload::default());
        let answer = self.succeed(start).await?;
        let location = answer.response.headers().get(LOCATION);
        let location = location.ok_or_else(|| Failed(format!("{} does not say where to upload to", answer.host)))?;
        let target = join(&answer.uri, location, self.insecure)?.to_string();
        let separator = if target.contains('?') { '&' } else { '?' };
        let target = format!("{target}{separator}digest={digest}");
        let target: Uri = target.parse().map_err(|_| RegistryError::address(&target))?;
        let mut put = outgoing(Method::PUT, target, Upload { bytes, progress: progress.cloned() });
        put.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        self.succeed(put).await.map(drop)
    }

    async fn put_manifest(&mut self, name: &str, bytes: Bytes) -> Result<(), RegistryError> {
        let mut put = outgoing(Method::PUT, self.uri("manifests", name)?, Upload { bytes, progress: None });
        put.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(MANIFEST_TYPE));
        self.succeed(put).await.map(drop)
    }

    /// Sends a request; if the registry refuses it for lack of authorization, once more with some.
    async fn succeed(&mut self, mut request: Request<Upload>) -> Result<Answer, RegistryError> {
        self.authorize(&mut request);
        let answer = self.http.send(&request, self.insecure).await?;
        if answer.response.status() != StatusCode::UNAUTHORIZED {
            return self.finish(answer).await;
        }
        if !self.is_registry(&answer.uri) {
            // A redirect or an upload led elsewhere, and that host must not choose who gets the credentials.
            return self.http.success(answer).await;
        }
        // A token may have expired meanwhile; another one is requested once.
        self.authorization = Some(self.meet_challenge(&answer).await?);
        self.authorize(&mut request);
        let answer = self.http.send(&request, self.insecure).await?;
        self.finish(answer).await
    }

    /// Adds the authorization, for the registry only: uploads may go elsewhere.
    fn authorize(&self, request: &mut Request<Upload>) {
        if let Some(authorization) = self.authorization.as_ref().filter(|_| self.is_registry(request.uri())) {
            request.headers_mut().insert(AUTHORIZATION, authorization.clone());
        }
    }

    /// Returns whether an address is one of the registry itself.
    fn is_registry(&self, uri: &Uri) -> bool {
        let own = self.http.address(self.repository.registry(), "/");
        own.is_ok_and(|own| origin(&own) == origin(uri))
    }

    async fn finish(&self, answer: Answer) -> Result<Answer, RegistryError> {
        match self.http.success(answer).await {
            Err(RegistryError::Status { host, status: StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, message }) => {
                Err(self.denied(host, message))
            }
            answer => answer,
        }
    }

    fn denied(&self, host: String, message: String) -> RegistryError {
        let repository = self.repository.path().to_owned();
        RegistryError::Denied { host, repository, given: self.basic.is_some(), message }
    }

    /// Returns the authorization that a registry requests.
    async fn meet_challenge(&self, answer: &Answer) -> Result<HeaderValue, RegistryError> {
        let headers = answer.response.headers().get_all(WWW_AUTHENTICATE);
        match (headers.iter().find_map(challenge), self.basic) {
            (Some(Challenge::Basic), Some(basic)) => Ok(header_of(basic)),
            (Some(Challenge::Basic), None) => Err(self.denied(answer.host.clone(), String::new())),
            (Some(Challenge::Bearer { realm, service }), _) => self.token(&realm, service.as_deref()).await,
            (None, _) => {
                let header = headers.iter().next().map(HeaderValue::as_bytes);
                let text = shortened(&String::from_utf8_lossy(header.unwrap_or_default()));
                Err(Failed(format!("{} asks for credentials by '{text}', which is not supported", answer.host)))
            }
        }
    }

    /// Requests a token for what this session does, and for no more than that.
    async fn token(&self, realm: &str, service: Option<&str>) -> Result<HeaderValue, RegistryError> {
        let scope = format!("repository:{}:{}", self.repository.path(), self.actions);
        let mut target = format!("{realm}{}scope={}", if realm.contains('?') { '&' } else { '?' }, encoded(&scope));
        if let Some(service) = service {
            target = format!("{target}&service={}", encoded(service));
        }
        let wrong = || RegistryError::target(self.repository.registry(), realm);
        let uri: Uri = target.parse().map_err(|_| wrong())?;
        if !may_be_read(&uri, self.insecure) {
            return Err(wrong());
        }
        let host = host_of(&uri);
        let mut request = outgoing(Method::GET, uri, Upload::default());
        request.headers_mut().extend(self.basic.map(|basic| (AUTHORIZATION, header_of(basic))));
        let answer = self.http.send(&request, self.insecure).await?;
        let answer = self.finish(answer).await?;
        let response = self.http.read(answer, MAX_TOKEN_RESPONSE, None).await?;
        authorization(&response).ok_or_else(|| Failed(format!("{host} sent no token")))
    }
}

fn header_of(basic: &Basic) -> HeaderValue {
    // Base64 is valid in a header.
    let mut value = HeaderValue::try_from(basic.header().expose_secret()).unwrap_or(HeaderValue::from_static(""));
    value.set_sensitive(true);
    value
}

/// Encodes a value of a query.
fn encoded(text: &str) -> String {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~:/".contains(&b);
    text.bytes().map(|b| if is_plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_queries_are_encoded() {
        assert_eq!(encoded("repository:a/b:pull,push"), "repository:a/b:pull%2Cpush");
        assert_eq!(encoded("a&scope=x y\r\n\u{e4}"), "a%26scope%3Dx%20y%0D%0A%C3%A4");
    }
}
