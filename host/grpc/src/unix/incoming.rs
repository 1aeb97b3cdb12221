//! The connections of a server on a Unix socket.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use futures::stream::unfold;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::sleep;

use super::Filter;

/// Pause after a failed accept: the process is probably out of file descriptors, and an immediate retry would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Returns a stream of the connections for which `may_connect` holds, filtered. At the limit, new connections wait.
pub fn incoming(
    listener: UnixListener,
    limit: usize,
    may_connect: impl FnMut(&UnixStream) -> bool + Send,
) -> impl Stream<Item = io::Result<Filter<UnixStream>>> + Send {
    let room = Arc::new(Semaphore::new(limit));
    unfold((listener, room, may_connect), |(listener, room, mut may_connect)| async move {
        loop {
            let permit = Arc::clone(&room).acquire_owned().await.ok()?;
            let accepted = match listener.accept().await {
                Ok((stream, _)) if may_connect(&stream) => Ok(Filter::counted(stream, permit)),
                Ok(_) => continue,
                Err(error) => {
                    sleep(ACCEPT_PAUSE).await;
                    Err(error)
                }
            };
            return Some((accepted, (listener, room, may_connect)));
        }
    })
}
