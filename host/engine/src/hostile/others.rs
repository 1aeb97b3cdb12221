//! While one handler misbehaves, another one's rounds go on.

use akri_model::grant::Group;
use tokio::task::JoinSet;

use super::server::serve;
use super::*;

/// All kinds of rounds that don't end by themselves, or fail at once.
fn misbehaviours() -> Vec<Call> {
    let silent = serve("127.0.0.1", |mut stream| drop(std::io::copy(&mut stream, &mut std::io::sink())));
    let group = Group { address: [239, 255, 79, 1].into(), port: 37041, interfaces: vec!["lo".to_owned()] };
    let multicast = Grants { multicast: vec![group], ..Grants::default() };
    let web = || http(&["127.0.0.0/8"]);
    vec![
        call("loop"),
        call("import-loop"),
        call("sleep"),
        call("memory"),
        call("stack"),
        call("panic"),
        call("log-flood:100000"),
        call("stdout-flood:100000"),
        call("aliased-strings:1000000"),
        with(multicast.clone(), "wait-an-hour:239.255.79.1 37041"),
        with(multicast, "send-flood:239.255.79.1 37041"),
        with(web(), &format!("get-many:900 http://{silent}/")),
        with(web(), "header-flood"),
        with(Grants { udp: vec![to(&["127.0.0.0/8"])], ..Grants::default() }, "socket-flood:1000"),
        call("cache-flood"),
    ]
}

#[tokio::test] // threat 53
async fn while_one_misbehaves_others_go_on() {
    let host = host(None);
    let (guest, other) = (host.load(bytes()).await.unwrap(), host.load(bytes()).await.unwrap());
    for bad in misbehaviours() {
        // More of them than there are turns.
        let running = || (0..6).map(|_| (guest.clone(), Call { limits: brief("").limits, ..bad.clone() }));
        let mut misbehaving: JoinSet<_> =
            running().map(|(guest, call)| async move { guest.discover(call).await.is_ok() }).collect();
        for _ in 0..5 {
            let found = other.discover(call("devices:10")).await;
            assert_eq!(found.map(|set| set.devices.len()), Ok(10), "beside {}", bad.details);
        }
        while misbehaving.join_next().await.is_some() {}
    }
}
