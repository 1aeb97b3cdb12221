//! Answers of an API server that is overloaded, which says when to come back (priority and fairness), or that refuses a patch.

use std::io;
use std::sync::{Arc, Mutex};

use kube::Config;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;

const FOUND: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: ";

fn too_many(seconds: u32) -> String {
    let text = "Too many requests, please try again later.";
    format!(
        "HTTP/1.1 429 Too Many Requests\r\nretry-after: {seconds}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{text}",
        text.len()
    )
}

/// Reads a request, and returns its body.
async fn read_request(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8(head).unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    let mut body = vec![0; length.unwrap_or_default()];
    stream.read_exact(&mut body).await?;
    Ok(body)
}

/// Serves these answers, one for each request. Returns a client, and when requests came.
async fn server(answers: Vec<String>) -> (Client, Arc<Mutex<Vec<Instant>>>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let requests = Arc::<Mutex<Vec<Instant>>>::default();
    let received = Arc::clone(&requests);
    tokio::spawn(async move {
        for answer in answers {
            let (mut stream, _) = listener.accept().await?;
            read_request(&mut stream).await?;
            received.lock().unwrap().push(Instant::now());
            stream.write_all(answer.as_bytes()).await?;
        }
        io::Result::Ok(())
    });
    (akri_kube::client::client(Config::new(format!("http://{address}").parse().unwrap())).unwrap(), requests)
}

async fn get(client: Client, limit: Duration) -> ClusterResult<Option<akri_api::Instance>> {
    let requests = Requests::new(client, MANAGER, limit);
    let found = requests.get::<akri_api::Instance>(&Key::new("default", "cam-1")).await?;
    found.as_ref().map(instance_of).transpose()
}

#[tokio::test] // rule 77
async fn overloaded_api_server_is_asked_again_after_its_delay() {
    let object = r#"{"apiVersion":"akri.sh/v0","kind":"Instance","metadata":{"name":"cam-1","namespace":"default"},
        "spec":{"configurationName":"cam","cdiName":"akri.sh/cam=1","capacity":1,"shared":true,"nodes":[]}}"#;
    let found = format!("{FOUND}{}\r\n\r\n{object}", object.len());
    let (client, requests) = server(vec![too_many(1), found]).await;
    assert!(get(client, Duration::from_secs(120)).await.unwrap().is_some());
    let times = requests.lock().unwrap().clone();
    assert!(times.len() == 2 && times[1] - times[0] >= Duration::from_secs(1), "{times:?}");
}

#[tokio::test] // rule 77
async fn overloaded_api_server_holds_up_no_request_for_ever() {
    let (client, requests) = server(vec![too_many(3600), too_many(3600)]).await;
    assert_eq!(
        get(client.clone(), REQUEST).await.unwrap_err(),
        ClusterError::Unavailable("the API server did not answer within 5s".to_owned())
    );
    assert_eq!(requests.lock().unwrap().len(), 1, "it was not asked in between");
    let again = tokio::time::timeout(Duration::from_secs(1), get(client, REQUEST)).await;
    assert!(again.is_err() && requests.lock().unwrap().len() == 1, "nor for the next request");
}

/// Changes the status of an object with a server that gives these answers to patches, and counts the requests.
async fn change(answers: &[&str]) -> (ClusterResult<bool>, usize) {
    let object = r#"{"apiVersion":"akri.sh/v0","kind":"Configuration","metadata":{"name":"cam","uid":"u"}}"#;
    let found = format!("{FOUND}{}\r\n\r\n{object}", object.len());
    let refused = |answer: &&str| {
        let head = "HTTP/1.1 422 Unprocessable Entity\r\ncontent-type: application/json\r\nconnection: close";
        [found.clone(), format!("{head}\r\ncontent-length: {}\r\n\r\n{answer}", answer.len())]
    };
    let answers = answers.iter().flat_map(refused).chain([found.clone(), found.clone()]);
    let (client, requests) = server(answers.collect()).await;
    let add = |_: &Value| Ok(Some(serde_json::json!([{"op": "add", "path": "/status", "value": {}}])));
    let writer = Requests::new(client, MANAGER, REQUEST);
    let changed = writer.change_status::<Configuration, ClusterError>(&Key::new("default", "cam"), "u", add).await;
    (changed.map(|object| object.is_some()), requests.lock().unwrap().len())
}

#[tokio::test] // rule 10
async fn refused_patch_is_reported_and_not_repeated() {
    let failed_test = r#"{"kind":"Status","status":"Failure","code":422,"reason":"Invalid","details":{},
        "message":"the server rejected our request due to an error in our request"}"#;
    let invalid = r#"{"kind":"Status","status":"Failure","code":422,"reason":"Invalid","details":{"name":"cam"},
        "message":"status.nodes: wrong"}"#;
    assert_eq!(change(&[]).await, (Ok(true), 2));
    assert_eq!(change(&[failed_test, failed_test]).await, (Ok(true), 6));
    let refused = ClusterError::Refused("the API server refuses: status.nodes: wrong".to_owned());
    assert_eq!(change(&[failed_test, invalid]).await, (Err(refused), 4));
}

#[tokio::test] // rule 131
async fn lease_is_given_up_after_the_renewal_under_way() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let client = akri_kube::client::client(Config::new(address.parse().unwrap())).unwrap();
    let (stopping, is_stopping) = watch::channel(false);
    let (_progress, looked_at) = watch::channel(agent_lease::LookedAt::default());
    let (_sharing, sharing) = watch::channel(Default::default());
    tokio::spawn(agent_lease::renew(client, "node-a".to_owned(), looked_at, sharing, is_stopping));
    let lease = r#"{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"akri-agent-node-a"}}"#;
    let mut written = Vec::new();
    for _ in 0..2 {
        let (mut stream, _) = listener.accept().await.unwrap();
        let body = read_request(&mut stream).await.unwrap();
        stopping.send_replace(true);
        let early = tokio::time::timeout(Duration::from_millis(300), listener.accept()).await;
        assert!(early.is_err(), "nothing is written beside it");
        written.push(String::from_utf8(body).unwrap().contains(r#""holderIdentity":"node-a""#));
        stream.write_all(format!("{FOUND}{}\r\n\r\n{lease}", lease.len()).as_bytes()).await.unwrap();
    }
    assert_eq!(written, [true, false]);
    stopping.closed().await;
}
