//! The functions that the host calls, and the connections.

use std::io::{self, ErrorKind};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use akri_handler::host::{keep, note, time_left};
use akri_handler::net::{TcpStream, block_on, connect, join_all, within};
use akri_handler::{Description, Device, Failure, Handler, Problem};

use crate::details::{Details, Server};
use crate::protocol::{self, HEADER_BYTES, Objects, Response, Transactions};

/// Time limit for connecting, and for each answer.
const LIMIT: Duration = Duration::from_secs(2);
/// Time before the end of the round at which no more units are asked.
const RESERVE: Duration = Duration::from_secs(5);
/// Units for which a round has time even if all are silent.
const FITTING: usize = 12;
/// Limit on the requests for one identification.
const MAX_REQUESTS: u16 = 8;

struct Modbus;
akri_handler::export!(Modbus);

impl Handler for Modbus {
    type Details = Details;

    const DESCRIPTION: Description = Description::new("modbus", env!("CARGO_PKG_VERSION")).shared().interval_ms(60_000);

    fn parse(json: Option<&str>) -> Result<Details, Vec<Problem>> {
        Details::parse(json).map_err(|problem| vec![problem])
    }

    fn discover(details: Details) -> Result<Vec<Device>, Failure> {
        let units = |server| ask_server(server, details.unit_ids.iter().copied().collect());
        let devices = block_on(join_all(details.servers.iter().map(units)));
        Ok(devices.into_iter().flatten().collect())
    }
}

fn id(server: &Server, unit: u8) -> String {
    format!("{server}/{unit}")
}

/// Asks a server for its units, one after the other. Devices whose state is unknown are kept: also if the server refuses connections,
/// which says nothing of the units behind it.
async fn ask_server(server: &Server, mut units: Vec<u8>) -> Vec<Device> {
    begin_elsewhere(&mut units);
    let mut devices = Vec::new();
    let mut connection = None;
    let mut transactions = Transactions::default();
    for (index, unit) in units.iter().enumerate() {
        let current = match again(connection.take(), server).await {
            Ok(current) => current,
            Err(error) => {
                unreachable(server, units.get(index..).unwrap_or_default(), &error);
                break;
            }
        };
        match identify(&current, &mut transactions, *unit).await {
            Ok(objects) => {
                devices.extend(objects.map(|objects| device(server, *unit, &objects)));
                connection = Some(current);
            }
            // What comes next on this connection may answer an earlier request, so the next unit has a new one.
            Err(error) => {
                note(&id(server, *unit), "NotIdentified", &format!("the unit was not identified: {error}"));
                keep(&id(server, *unit));
            }
        }
    }
    devices
}

/// Rotates units that a round has no time for if all are silent, so that the next round gets to others.
fn begin_elsewhere(units: &mut [u8]) {
    if units.len() > FITTING {
        let minutes = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() / 60);
        units.rotate_left(minutes as usize % units.len() * FITTING % units.len());
    }
}

/// Returns a connection for the next unit, if there is time for it.
async fn again(connection: Option<TcpStream>, server: &Server) -> io::Result<TcpStream> {
    match connection {
        _ if time_left(RESERVE).is_zero() => {
            Err(io::Error::new(ErrorKind::TimedOut, "the round has no time left for all units"))
        }
        Some(connection) => Ok(connection),
        None => connect(&server.host, server.port, LIMIT).await,
    }
}

fn unreachable(server: &Server, units: &[u8], error: &io::Error) {
    note(&server.to_string(), "Unreachable", &format!("the server was not reached: {error}"));
    units.iter().for_each(|unit| keep(&id(server, *unit)));
}

fn device(server: &Server, unit: u8, objects: &Objects) -> Device {
    let device = Device { origin: id(server, unit), ..Device::new(id(server, unit)) }
        .property("MODBUS_HOST", &server.host)
        .property("MODBUS_PORT", server.port.to_string())
        .property("MODBUS_UNIT_ID", unit.to_string());
    protocol::properties(objects).fold(device, |device, (name, value)| device.property(name, value))
}

/// Returns the identification of a unit, which may be empty; none if a gateway reports that there is no such unit.
async fn identify(connection: &TcpStream, transactions: &mut Transactions, unit: u8) -> io::Result<Option<Objects>> {
    let (mut objects, mut from) = (Objects::new(), 0);
    for _ in 0..MAX_REQUESTS {
        match within(LIMIT, exchange(connection, transactions.number(), unit, from)).await? {
            Response::Absent => return Ok(None),
            Response::Unidentified => return Ok(Some(objects)),
            Response::Busy => return Err(io::Error::other("it is busy")),
            Response::Objects(more, next) => {
                objects.extend(more);
                match next {
                    Some(next) => from = next,
                    None => return Ok(Some(objects)),
                }
            }
        }
    }
    Ok(Some(objects))
}

async fn exchange(connection: &TcpStream, transaction: u16, unit: u8, object: u8) -> io::Result<Response> {
    connection.write_all(&protocol::request(transaction, unit, object)).await?;
    let mut header = [0; HEADER_BYTES];
    connection.read_exact(&mut header).await?;
    let length = protocol::body_length(transaction, header).map_err(io::Error::other)?;
    let mut body = vec![0; length];
    connection.read_exact(&mut body).await?;
    protocol::response(unit, &body).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_of_the_cassettes_come_to_their_results() {
        akri_handler::testing::play::<Modbus>("cassettes");
    }
}
