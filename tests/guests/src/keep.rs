//! Secrets, and what to remember.

use crate::akri::discovery::types::{DeviceSpec, DiscoveryError, Mount};
use crate::akri::discovery::{cache, logging, round, secrets};
use crate::behaviour::Keep;
use crate::{Round, answer, device, hint, hostile, number};

pub(crate) fn discover(behaviour: Keep, argument: &str) -> Round {
    match behaviour {
        Keep::Reveal => Ok(vec![device("kept", vec![reveal(argument)])]),
        Keep::Leak => leak(argument),
        Keep::LeakLater => leak_later(),
        Keep::WriteCache => Ok(vec![device("kept", write_cache(argument))]),
        Keep::WriteCacheAndFail => write_cache_and_fail(argument),
        Keep::ReadCache => Ok(vec![device("kept", vec![read_cache(argument)])]),
        Keep::CacheFlood => Ok(vec![device("kept", flood(number(argument, 1024)))]),
    }
}

/// Looks at a secret, twice, and says how long it is.
fn reveal(name: &str) -> (String, String) {
    match secrets::get(name) {
        Err(error) => hint("SECRET", &format!("{error:?}")),
        Ok(None) => hint("SECRET", "none"),
        Ok(Some(secret)) => hint("SECRET", &format!("{} bytes", secret.reveal().len().max(secret.reveal().len()))),
    }
}

/// Puts the secret `password` where it should not be.
fn leak(place: &str) -> Round {
    let secret = secrets::get("password").unwrap().unwrap().reveal();
    let text = format!("it is {}!", String::from_utf8_lossy(&secret));
    let mut one = device("leak", vec![hint("A", "harmless")]);
    match place {
        "property" => one.properties.push(hint("URL", &text)),
        "id" => one.id = text,
        "origin" => one.origin = text,
        "mount" => one.mounts.push(Mount { container_path: text, host_path: "/dev/null".to_owned(), read_only: true }),
        "device-spec" => one.device_specs.push(DeviceSpec {
            container_path: "/dev/x".to_owned(),
            host_path: text,
            permissions: "rw".to_owned(),
        }),
        "kept" => round::keep(&text),
        "note" => round::note("origin", "Refused", &text),
        "log" => logging::log(logging::Level::Info, "guest", &text),
        "stdout" => println!("{text}"),
        "stderr" => eprint!("{text}"),
        "panic" => panic!("{text}"),
        "error" => return Err(DiscoveryError::Unavailable(text)),
        _ => return Err(DiscoveryError::Unavailable("no such place".to_owned())),
    }
    Ok(vec![one])
}

/// Remembers the secret `password`, and tells it in another round, in which it looks at no secret.
fn leak_later() -> Round {
    match cache::get("password") {
        Some(secret) => Ok(vec![device("leak", vec![hint("URL", &String::from_utf8_lossy(&secret))])]),
        None => {
            let secret = secrets::get("password").unwrap().unwrap().reveal();
            cache::set("password", &secret).map(|()| Vec::new()).map_err(|e| DiscoveryError::Unavailable(e.to_string()))
        }
    }
}

/// `KEY=VALUE`
fn write_cache(argument: &str) -> Vec<(String, String)> {
    let (key, value) = argument.split_once('=').unwrap_or((argument, ""));
    vec![answer("SET", cache::set(key, value.as_bytes())), read_cache(key)]
}

fn read_cache(key: &str) -> (String, String) {
    hint("VALUE", &cache::get(key).map_or_else(|| "none".to_owned(), |v| String::from_utf8_lossy(&v).into_owned()))
}

/// Remembers `key=HOW`, and does not end well.
fn write_cache_and_fail(how: &str) -> Round {
    cache::set("key", how.as_bytes()).unwrap();
    match how {
        "panic" => panic!("it remembers, and panics"),
        "loop" => hostile::spin(),
        "limit" => Ok(vec![device("", Vec::new())]),
        _ => Err(DiscoveryError::Unavailable("it remembers, and finds nothing".to_owned())),
    }
}

/// As many kilobytes as fit.
fn flood(count: usize) -> Vec<(String, String)> {
    let kept = (0..count).map_while(|i| cache::set(&i.to_string(), &[0; 1024]).ok()).count();
    vec![hint("KEPT", &kept.to_string()), answer("NEXT", cache::set("next", &[0; 1024]))]
}
