//! gRPC services that keep working if the clock is outside HTTP's range of dates.
//!
//! hyper adds a date to each response without one and panics before 1970 and after 9999; tonic cannot disable that. A
//! board with an unset clock still has to serve its devices, so such responses get the nearest valid date, which no
//! gRPC client reads.

use std::{
    task::{Context, Poll},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tonic::{
    body::Body,
    codegen::{
        BoxFuture, Service,
        http::{HeaderValue, Request, Response, header::DATE},
    },
    server::NamedService,
};

/// Service that adds a date to responses where hyper cannot.
#[derive(Clone, Debug)]
pub struct Dated<S>(pub S);

/// First second of the year 10000.
const END: Duration = Duration::from_secs(253_402_300_800);

/// Date for a response at a time that hyper cannot format.
fn substitute(now: SystemTime) -> Option<HeaderValue> {
    match now.duration_since(UNIX_EPOCH) {
        Ok(since) if since < END => None,
        Ok(_) => Some(HeaderValue::from_static("Fri, 31 Dec 9999 23:59:59 GMT")),
        Err(_) => Some(HeaderValue::from_static("Thu, 01 Jan 1970 00:00:00 GMT")),
    }
}

// === impl Dated ===

impl<S> Service<Request<Body>> for Dated<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<Response<Body>, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let answering = self.0.call(request);
        Box::pin(async {
            let mut answer = answering.await?;
            if let Some(date) = substitute(SystemTime::now()) {
                answer.headers_mut().insert(DATE, date);
            }
            Ok(answer)
        })
    }
}

impl<S: NamedService> NamedService for Dated<S> {
    const NAME: &'static str = S::NAME;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_http_has_no_date_for_gets_the_nearest_and_others_get_hypers() {
        let second = Duration::from_secs(1);
        let check = |now, expected: Option<&str>| {
            let found = substitute(now);
            assert_eq!(
                found.as_ref().map(|date| date.to_str().expect("text")),
                expected,
                "{now:?}"
            );
        };
        check(UNIX_EPOCH - second, Some("Thu, 01 Jan 1970 00:00:00 GMT"));
        check(UNIX_EPOCH, None);
        check(SystemTime::now(), None);
        check(UNIX_EPOCH + END - second, None);
        check(UNIX_EPOCH + END, Some("Fri, 31 Dec 9999 23:59:59 GMT"));
    }
}
