//! Remote discovery handlers for stories: a scripted one, and programs with various gRPC stacks.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use akri_grpc::discovery::discovery_handler_server::{DiscoveryHandler, DiscoveryHandlerServer};
use akri_grpc::discovery::registration_client::RegistrationClient;
use akri_grpc::discovery::{Device, DiscoverRequest, DiscoverResponse, RegisterDiscoveryHandlerRequest};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream, UnixListenerStream};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

use crate::node::{Node, akri};
use crate::skip::{is_left_to_make_test, skip};

/// Endpoint types in registrations.
pub const UDS: i32 = 0;
pub const NETWORK: i32 = 1;

/// The sender of an open Discover stream.
type Line = mpsc::Sender<Result<DiscoverResponse, Status>>;

/// The response to a Discover call.
#[derive(Clone)]
pub enum Answer {
    /// Sends these devices and keeps the stream open.
    Devices(Vec<Device>),
    /// Sends nothing.
    Silence,
    /// Ends the stream.
    End,
    /// Fails with a status.
    Fail(Status),
}

/// Returns devices with names only.
pub fn devices(names: &[&str]) -> Vec<Device> {
    let device = |name: &&str| Device {
        id: (*name).to_owned(),
        properties: [("NAME".to_owned(), (*name).to_owned())].into(),
        ..Device::default()
    };
    names.iter().map(device).collect()
}

#[derive(Default)]
struct State {
    answer: Option<Answer>,
    calls: Vec<DiscoverRequest>,
    lines: Vec<Line>,
}

/// A handler in this process. Dropping it is like `kill -9`: connections end, and the socket remains.
pub struct Handler {
    pub name: String,
    pub endpoint: String,
    pub endpoint_type: i32,
    pub shared: bool,
    state: Arc<Mutex<State>>,
    task: JoinHandle<()>,
}

impl Handler {
    /// Serves on `<socket>.sock` in the node's handler directory, with these devices.
    pub fn start(node: &Node, name: &str, socket: &str, names: &[&str]) -> Self {
        let path = node.path("handlers").join(format!("{socket}.sock"));
        let _ = fs::remove_file(&path); // of an earlier handler
        let listener = UnixListenerStream::new(UnixListener::bind(&path).unwrap());
        let state = Arc::new(Mutex::new(State { answer: Some(Answer::Devices(devices(names))), ..State::default() }));
        let service = DiscoveryHandlerServer::new(Service(Arc::clone(&state)));
        let serving = Server::builder().add_service(service).serve_with_incoming(listener);
        let task = tokio::spawn(async move { serving.await.unwrap() });
        let endpoint = path.display().to_string();
        Self { name: name.to_owned(), endpoint, endpoint_type: UDS, shared: false, state, task }
    }

    /// Serves on a port of 127.0.0.1.
    pub async fn start_on_network(name: &str, names: &[&str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(State { answer: Some(Answer::Devices(devices(names))), ..State::default() }));
        let service = DiscoveryHandlerServer::new(Service(Arc::clone(&state)));
        let serving = Server::builder().add_service(service).serve_with_incoming(TcpListenerStream::new(listener));
        let task = tokio::spawn(async move { serving.await.unwrap() });
        Self { name: name.to_owned(), endpoint, endpoint_type: NETWORK, shared: false, state, task }
    }

    pub fn shared(mut self) -> Self {
        self.shared = true;
        self
    }

    /// Waits for the agent and registers.
    pub async fn register(&self, node: &Node) -> Result<(), Status> {
        let request = RegisterDiscoveryHandlerRequest {
            name: self.name.clone(),
            endpoint: self.endpoint.clone(),
            endpoint_type: self.endpoint_type,
            shared: self.shared,
        };
        register(node, request).await
    }

    /// Sets the response, also of open streams.
    pub async fn answer(&self, answer: Answer) {
        self.set(answer.clone());
        let lines = self.state.lock().unwrap().lines.clone();
        for line in lines {
            match &answer {
                Answer::Devices(devices) => {
                    let _ = line.send(Ok(DiscoverResponse { devices: devices.clone() })).await; // it may have ended
                }
                Answer::Fail(status) => {
                    let _ = line.send(Err(status.clone())).await;
                }
                Answer::End | Answer::Silence => {}
            }
        }
        if matches!(answer, Answer::End | Answer::Fail(_)) {
            self.state.lock().unwrap().lines.clear();
        }
    }

    /// Sets the response of further calls; open streams are unchanged.
    pub fn set(&self, answer: Answer) {
        self.state.lock().unwrap().answer = Some(answer);
    }

    /// Sends these devices.
    pub async fn sees(&self, names: &[&str]) {
        self.answer(Answer::Devices(devices(names))).await;
    }

    /// Returns all Discover calls.
    pub fn calls(&self) -> Vec<DiscoverRequest> {
        self.state.lock().unwrap().calls.clone()
    }

    /// Returns the number of open streams.
    pub fn open_streams(&self) -> usize {
        let mut state = self.state.lock().unwrap();
        state.lines.retain(|line| !line.is_closed());
        state.lines.len()
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        self.task.abort();
        self.state.lock().unwrap().lines.clear();
    }
}

struct Service(Arc<Mutex<State>>);

#[tonic::async_trait]
impl DiscoveryHandler for Service {
    type DiscoverStream = ReceiverStream<Result<DiscoverResponse, Status>>;

    async fn discover(&self, request: Request<DiscoverRequest>) -> Result<Response<Self::DiscoverStream>, Status> {
        let (line, stream) = mpsc::channel(4);
        let answer = {
            let mut state = self.0.lock().unwrap();
            state.calls.push(request.into_inner());
            state.answer.clone().unwrap()
        };
        match answer {
            Answer::Devices(devices) => line.try_send(Ok(DiscoverResponse { devices })).unwrap(),
            Answer::Fail(status) => return Err(status),
            Answer::End => return Ok(Response::new(ReceiverStream::new(stream))),
            Answer::Silence => {}
        }
        self.0.lock().unwrap().lines.push(line);
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

/// Waits for the agent's registration socket and connects.
pub async fn agent(node: &Node) -> RegistrationClient<Channel> {
    let socket = format!("unix://{}", node.path("handlers/agent-registration.sock").display());
    let endpoint = Endpoint::from_shared(socket).unwrap();
    loop {
        match endpoint.connect().await {
            Ok(channel) => return RegistrationClient::new(channel),
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
        }
    }
}

/// Sends a registration.
pub async fn register(node: &Node, request: RegisterDiscoveryHandlerRequest) -> Result<(), Status> {
    agent(node).await.register_discovery_handler(request).await.map(drop)
}

/// A handler program with some gRPC stack; each file in the directory of its details is a device. It is killed on drop.
pub struct Program(Child);

/// The gRPC stacks with programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stack {
    /// `examples/remote-handler-rust`.
    Tonic,
    /// `examples/remote-handler-python`, with grpcio's default options.
    Grpcio,
    /// `tests/peers/remote_grpclib.py`.
    Grpclib,
    /// `tests/peers/remote_node.js`.
    GrpcJs,
    /// `tests/peers/remote_go`, which dials by the bare path as device plugins in Go do.
    GrpcGo,
}

impl Stack {
    /// Returns whether the stack is installed; skips the story if not.
    pub fn is_installed(self) -> bool {
        if is_left_to_make_test() {
            return false;
        }
        let peers = root().join("target/peers");
        let installed = match self {
            Self::Tonic => true, // part of the build
            Self::Grpcio | Self::Grpclib => peers.join("python/installed").exists(),
            Self::GrpcJs => peers.join("node/installed").exists(),
            Self::GrpcGo => peers.join("go/remote_go").exists(),
        };
        if !installed {
            skip(&format!("{self:?} is not installed: run 'make peers'"));
        }
        installed
    }

    fn command(self) -> Command {
        let root = root();
        let python = root.join("target/peers/python/bin/python");
        let with = |program: PathBuf, script: &str| {
            let mut command = Command::new(program);
            command.arg(root.join(script));
            command
        };
        match self {
            Self::Tonic => Command::new(akri().with_file_name("remote-handler")),
            Self::Grpcio => with(python, "examples/remote-handler-python/handler.py"),
            Self::Grpclib => with(python, "tests/peers/remote_grpclib.py"),
            Self::GrpcJs => {
                let mut command = with("node".into(), "tests/peers/remote_node.js");
                command.env("NODE_PATH", root.join("target/peers/node/node_modules"));
                command
            }
            Self::GrpcGo => Command::new(root.join("target/peers/go/remote_go")),
        }
    }

    /// Starts its program as the handler of that name.
    ///
    /// # Panics
    /// If it is not installed.
    pub fn start(self, node: &Node, name: &str) -> Program {
        let mut command = self.command();
        command.arg(name);
        Program::start(command, &node.path("handlers"))
    }
}

impl Program {
    /// Starts a program as a handler in this handler directory.
    ///
    /// # Panics
    /// If there is no such program.
    pub fn start(mut command: Command, directory: &Path) -> Self {
        command.env("DISCOVERY_HANDLERS_DIRECTORY", directory).stdin(Stdio::null());
        Self(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have ended already
        let _ = self.0.wait();
    }
}
