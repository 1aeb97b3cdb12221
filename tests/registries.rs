//! Registries that misbehave, redirect, ask for credentials, or have other certificates.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use akri_model::image::PinnedImage;
use akri_oci::{Client, Credentials, Limits, Progress, Pulled, RegistryError, Settings};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::HeaderValue;
use hyper::{Request, Response};
use rcgen::{CertificateParams, KeyPair, SanType};
use serde_json::{Value, json};
use tokio_stream::StreamExt as _;

use crate::support::registry::{Body, FakeRegistry, Image, descriptor, digest_of, fake, text};

fn header(status: u16, name: &str, value: &str) -> Response<Body> {
    let body = BodyExt::boxed_unsync(Full::new(Bytes::new()));
    Response::builder().status(status).header(name, value).body(body).unwrap()
}

fn two_challenges() -> Response<Body> {
    let mut response = header(401, "www-authenticate", "Negotiate");
    response.headers_mut().append("www-authenticate", HeaderValue::from_static("Basic realm=\"x\""));
    response
}

/// A body of chunks, one each `pause`, without an end.
fn endless(chunk: usize, pause: Duration) -> Response<Body> {
    let chunks = tokio_stream::iter(std::iter::repeat_with(move || Ok(Frame::data(Bytes::from(vec![0; chunk])))));
    Response::new(BodyExt::boxed_unsync(StreamBody::new(Box::pin(chunks.throttle(pause)))))
}

fn quick() -> Limits {
    let (window, response) = (Duration::from_secs(2), Duration::from_secs(30));
    Limits { window, window_bytes: 1024, response, connect: response, total: Duration::from_secs(60) }
}

fn credentials(registry: &str, login: &str) -> Credentials {
    let auths = json!({"auths": {registry: {"auth": BASE64_STANDARD.encode(login)}}});
    Credentials::parse(auths.to_string().as_bytes()).unwrap()
}

async fn pull_with(settings: Settings, image: &PinnedImage, login: Option<&str>) -> Result<Pulled, RegistryError> {
    let credentials = login.map(|login| credentials(image.repository.registry(), login)).unwrap_or_default();
    let client = Client::new(&settings).unwrap();
    let pulled = client.pull(image, &credentials, &Progress::default(), |_| ready(Ok::<_, RegistryError>(()))).await;
    pulled.map(|(pulled, ())| pulled)
}

/// Settings that allow these servers without TLS.
fn without_tls(fakes: &[&FakeRegistry]) -> Settings {
    let insecure = fakes.iter().map(|fake| fake.name()).collect();
    Settings { insecure, limits: quick(), ..Settings::default() }
}

/// Pulls the image of the first of these fake registries, which has this manifest, without TLS.
async fn pull(fakes: &[&FakeRegistry], manifest: &str, login: Option<&str>) -> Result<Pulled, RegistryError> {
    let image = format!("{}/a@{}", fakes[0].name(), digest_of(manifest.as_bytes())).parse().unwrap();
    pull_with(without_tls(fakes), &image, login).await
}

type Behaviour = Box<dyn Fn(&Request<Incoming>) -> Response<Body> + Send + Sync>;

#[tokio::test] // rule 74, threat 24
async fn misbehaving_registries_are_refused_within_bounds() {
    let good = Image::of(b"component");
    let blob = |answer: fn() -> Response<Body>| -> Behaviour {
        let good = good.clone();
        Box::new(move |request| if request.uri().path().contains("/blobs/") { answer() } else { good.answer(request) })
    };
    let none = json!({});
    let layer = descriptor("application/wasm", b"component", &none);
    let mut large = layer.clone();
    large["size"] = json!(10_u64 << 30);
    let other = |layers: Value| -> (String, Behaviour) {
        let image = Image::with(b"component", &layers);
        (image.manifest.clone(), Box::new(move |request| image.answer(request)))
    };
    let manifest = good.manifest.clone();
    let always = |answer: fn() -> Response<Body>| (manifest.clone(), Box::new(move |_: &_| answer()) as Behaviour);
    for (expected, (manifest, behaviour)) in [
        ("the manifest that ", always(|| text(200, "{}"))),
        ("it has 2 layers", other(json!([layer, layer]))),
        ("it has 0 layers", other(json!([]))),
        ("10737418240 bytes, more than", other(json!([large]))),
        ("sent more than 262144 bytes", always(|| text(200, vec![b' '; 300_000]))),
        ("sent more than 262144 bytes", always(|| endless(65_536, Duration::ZERO))),
        ("is too slow: it sent less than 1024 bytes", always(|| endless(1, Duration::from_millis(20)))),
        ("redirects more than 5 times", always(|| header(307, "location", "/v2/again"))),
        ("which is not https", always(|| header(302, "location", "http://r.example/v2/a"))),
        ("which is not https", always(|| header(302, "location", "http://127.0.0.1:1/v2/a"))),
        ("which is not https", always(|| header(302, "location", "file:///etc/passwd"))),
        ("does not exist", always(|| text(404, r#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"x"}]}"#))),
        ("answered '503 Service Unavailable': busy", always(|| text(503, "busy\nnow"))),
        ("asks for credentials by 'Negotiate'", always(|| header(401, "www-authenticate", "Negotiate"))),
        ("asks for credentials by ''", always(|| text(401, ""))),
        ("without credentials", always(|| header(401, "www-authenticate", "Basic realm=\"x\""))),
        ("without credentials", always(two_challenges)),
        (
            "leads to 'http://r.example/token'",
            always(|| header(401, "www-authenticate", "Bearer realm=\"http://r.example/token\"")),
        ),
        ("the component has 5 bytes, its manifest says 9", (good.manifest.clone(), blob(|| text(200, "short")))),
        ("sent more than 9 bytes", (good.manifest.clone(), blob(|| text(200, "much longer")))),
        ("the component that ", (good.manifest.clone(), blob(|| text(200, "COMPONENT")))),
        ("answered '500 Internal Server Error'", (good.manifest.clone(), blob(|| text(500, "")))),
    ] {
        let fake = FakeRegistry::start(None, behaviour).await;
        let error = pull(&[&fake], &manifest, None).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
        assert!(fake.requests().len() <= 6, "{expected}: {:?}", fake.requests());
    }
    let fake = FakeRegistry::start(None, |_| text(200, "{}")).await;
    let image = format!("{}/a@{}", fake.name(), digest_of(b"x")).parse().unwrap();
    let signatures =
        Client::new(&without_tls(&[&fake])).unwrap().signatures(&image, &[], &Credentials::default()).await;
    let Err(RegistryError::Signature(why)) = signatures else { panic!("{signatures:?}") };
    assert!(why.contains(" can't be read: "), "{why}");

    let image = format!("127.0.0.1:1/a@{}", digest_of(b"x")).parse().unwrap();
    let settings = Settings { insecure: vec!["127.0.0.1:1".to_owned()], limits: quick(), ..Settings::default() };
    let error = pull_with(settings, &image, None).await.unwrap_err().to_string();
    assert!(error.starts_with("cannot reach 127.0.0.1:1: "), "{error}");

    let image = format!("{}/a@{}", fake.name(), digest_of(b"x")).parse().unwrap();
    let error =
        pull_with(Settings { limits: quick(), ..Settings::default() }, &image, None).await.unwrap_err().to_string();
    let remedy = format!("; it answers without TLS, which --insecure-registry {} allows", fake.name());
    assert!(error.ends_with(&remedy), "{error}");
}

#[tokio::test] // rule 74, threat 25
async fn credentials_go_to_the_registry_and_its_token_server_only() {
    let good = Image::of(b"component");
    let elsewhere = fake(good.clone()).await;
    let (target, image) = (format!("http://{}/blob", elsewhere.name()), good.clone());
    // A token is needed for everything, and components are elsewhere.
    let registry = Arc::new(std::sync::OnceLock::<String>::new());
    let own = Arc::clone(&registry);
    let fake = FakeRegistry::start(None, move |request| {
        let has_token = request.headers().get("authorization").is_some_and(|value| value == "Bearer abc");
        if request.uri().path() == "/token" {
            return text(200, r#"{"token": "abc"}"#);
        }
        if !has_token {
            let realm = format!("Bearer realm=\"http://{}/token\",service=\"r&x\"", own.get().unwrap());
            return header(401, "www-authenticate", &realm);
        }
        let is_blob = request.uri().path().contains("/blobs/");
        if is_blob { header(307, "location", &target) } else { image.answer(request) }
    })
    .await;
    registry.set(fake.name()).unwrap();
    let pulled = pull(&[&fake, &elsewhere], &good.manifest, Some("user:word")).await.unwrap();
    assert_eq!(pulled.component, b"component");
    let basic = format!("Basic {}", BASE64_STANDARD.encode("user:word"));
    let digest = digest_of(good.manifest.as_bytes());
    let requests = fake.requests();
    assert_eq!(requests[0], format!("GET /v2/a/manifests/{digest} -"));
    assert_eq!(requests[1], format!("GET /token?scope=repository:a:pull&service=r%26x {basic}"));
    assert_eq!(requests[2], format!("GET /v2/a/manifests/{digest} Bearer abc"));
    assert_eq!(elsewhere.requests(), ["GET /blob -"], "without the token");

    // A host that a redirect or an upload leads to must not name a token server: it would get the password.
    let collector = FakeRegistry::start(None, |_| text(200, r#"{"token": "abc"}"#)).await;
    let challenge = format!("Bearer realm=\"http://{}/token\"", collector.name());
    let elsewhere = FakeRegistry::start(None, move |_| header(401, "www-authenticate", &challenge)).await;
    let (target, image) = (format!("http://{}/blob", elsewhere.name()), good.clone());
    let fake = FakeRegistry::start(None, move |request| match request.method().as_str() {
        "HEAD" => text(404, ""),
        "POST" => header(202, "location", &target),
        _ if request.uri().path().contains("/blobs/") => header(307, "location", &target),
        _ => image.answer(request),
    })
    .await;
    let fakes = [&fake, &elsewhere, &collector];
    let pulled = pull(&fakes, &good.manifest, Some("user:word")).await.map(drop);
    let (client, reference) = (Client::new(&without_tls(&fakes)).unwrap(), format!("{}/a", fake.name()));
    let (login, progress) = (credentials(&fake.name(), "user:word"), Arc::default());
    let pushed = client.push(&reference.parse().unwrap(), b"component".to_vec(), (&[], &[]), &login, &progress).await;
    for (what, result) in [("pull", pulled), ("push", pushed.map(drop))] {
        let error = result.unwrap_err().to_string();
        assert_eq!(error, format!("{} answered '401 Unauthorized'", elsewhere.name()), "{what}");
    }
    assert_eq!(collector.requests(), Vec::<String>::new());
    let requests = elsewhere.requests();
    assert!(
        requests.len() == 2 && requests[0] == "GET /blob -" && requests[1].starts_with("PUT /blob?"),
        "{requests:?}"
    );
    assert!(requests[1].ends_with(" -"), "{requests:?}");
}

#[tokio::test] // rule 74, threat 24
async fn certificates_of_registries_are_verified() {
    let good = Image::of(b"component");
    let key = KeyPair::generate().unwrap();
    let certificate = |year: i32| {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::IpAddress([127, 0, 0, 1].into())];
        params.not_before = rcgen::date_time_ymd(2000, 1, 1);
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        params.self_signed(&key).unwrap()
    };
    for (year, trusted, expected) in
        [(2100, true, None), (2100, false, Some("UnknownIssuer")), (2001, true, Some("xpired"))]
    {
        let (certificate, image) = (certificate(year), good.clone());
        let served = Some((certificate.der().clone(), &key));
        let fake = FakeRegistry::start(served, move |request| image.answer(request)).await;
        let reference = format!("{}/a@{}", fake.name(), digest_of(good.manifest.as_bytes())).parse().unwrap();
        let authorities = trusted.then(|| certificate.pem().into_bytes());
        let settings = Settings { authorities, limits: quick(), ..Settings::default() };
        let pulled = pull_with(settings, &reference, None).await;
        match expected {
            None => assert_eq!(pulled.unwrap().component, b"component"),
            Some(expected) => {
                let error = pulled.unwrap_err().to_string();
                assert!(error.contains(expected), "{year}: {error}");
                assert!(fake.requests().is_empty());
            }
        }
    }
}
