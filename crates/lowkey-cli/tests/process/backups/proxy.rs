//! Something between a process and the S3 server that does what networks and cheap servers do.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// What it does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Trouble {
    /// Every answer comes late.
    Delays(Duration),
    /// Of every so many requests one is carried out, and its answer is lost.
    LosesOneAnswerIn(usize),
    /// Where a condition was not met, it says that it was.
    IgnoresConditions,
}

/// Leads connections to the server's port; gives its own. It ends with the process of the test.
pub(crate) fn between(port: u16, trouble: Trouble) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let own = listener.local_addr().unwrap().port();
    let answers = Arc::new(AtomicUsize::new(0));
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { continue };
            let answers = Arc::clone(&answers);
            let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || pass(from, to, |_| true));
            std::thread::spawn(move || pass(server, client, |answer| meddle(answer, trouble, &answers)));
        }
    });
    own
}

/// Changes what the server says; false if it is to get lost, with the connection.
fn meddle(answer: &mut Vec<u8>, trouble: Trouble, answers: &AtomicUsize) -> bool {
    const REFUSED: &[u8] = b"HTTP/1.1 412 Precondition Failed\r\n";
    if !answer.starts_with(b"HTTP/1.1 ") {
        return true;
    }
    let number = answers.fetch_add(1, Ordering::SeqCst) + 1;
    match trouble {
        Trouble::Delays(time) => std::thread::sleep(time),
        Trouble::LosesOneAnswerIn(count) => return !number.is_multiple_of(count),
        Trouble::IgnoresConditions => {
            if let Some(rest) = answer.strip_prefix(REFUSED) {
                *answer = [b"HTTP/1.1 200 OK\r\nETag: \"x\"\r\n", rest].concat();
            }
        }
    }
    true
}

fn pass(mut from: TcpStream, mut to: TcpStream, mut look: impl FnMut(&mut Vec<u8>) -> bool) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let mut piece = buffer[..count].to_vec();
        if !look(&mut piece) || to.write_all(&piece).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
