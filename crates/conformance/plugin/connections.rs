//! Connections as they come, looked into where the plugin is to die of what is in them.

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{UnixListener, UnixStream},
    sync::mpsc,
};

use crate::defect::Defect;

/// Connections that a plugin of few takes.
const FEW: usize = 20;

/// How a message of 5 MiB begins: not compressed, and its length.
const LARGE: [u8; 5] = [0, 0, 0x50, 0, 0];

/// Bytes of a message that is none.
const GARBAGE: [u8; 32] = [0xff; 32];

/// Accepts for ever.
pub(crate) async fn accept(
    listener: UnixListener,
    to: mpsc::Sender<Result<UnixStream, std::io::Error>>,
    defect: Defect,
) {
    let mut accepted = 0;
    while let Ok((stream, _)) = listener.accept().await {
        accepted += 1;
        if defect == Defect::FewConnections && accepted > FEW {
            std::future::pending::<()>().await;
        }
        let is_watched = [Defect::DiesOfGarbage, Defect::DiesOfCutConnections].contains(&defect);
        let stream = if is_watched { watched(stream, defect) } else { Ok(stream) };
        if to.send(stream).await.is_err() {
            return;
        }
    }
}

/// The same connection, through one who looks at what comes.
fn watched(stream: UnixStream, defect: Defect) -> Result<UnixStream, std::io::Error> {
    let (inner, outer) = UnixStream::pair()?;
    tokio::spawn(async move {
        let ((mut from, mut back), (mut answers, mut onward)) =
            (stream.into_split(), outer.into_split());
        let asked = async {
            let (mut is_first, mut buffer) = (true, vec![0; 64 * 1024]);
            while let Ok(count @ 1..) = from.read(&mut buffer).await {
                let bytes = &buffer[..count];
                let is_garbage = is_first && !bytes.starts_with(b"PRI")
                    || bytes.windows(LARGE.len()).any(|window| window == LARGE)
                    || bytes.windows(GARBAGE.len()).any(|window| window == GARBAGE);
                is_first = false;
                if is_garbage && defect == Defect::DiesOfGarbage {
                    std::process::exit(1);
                }
                if onward.write_all(bytes).await.is_err() {
                    return;
                }
            }
            if defect == Defect::DiesOfCutConnections {
                std::process::exit(1);
            }
        };
        let answered = tokio::io::copy(&mut answers, &mut back);
        tokio::select! { () = asked => {}, _ = answered => {} }
    });
    Ok(inner)
}
