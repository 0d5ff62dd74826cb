//! Which page a request gets.

use http_body_util::Full;
use hyper::{
    Method, Response, StatusCode,
    body::Bytes,
    header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue},
};
use prometheus_client::encoding::text;

use super::{
    Admin,
    probe::{self, Report},
};

/// A response with its whole body.
pub(super) type Page = Response<Full<Bytes>>;

const INDEX: &str = "\
windlass node

/healthz  whether the agent should go on, or be restarted
/readyz   whether every resource is registered with the kubelet
/metrics  OpenMetrics
/devices  the inventory as JSON
";

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
/// `OpenMetrics` 1.0, section 4.2.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The page at a path.
pub(super) async fn answer(admin: &Admin, method: &Method, path: &str) -> Page {
    if !["/", "/healthz", "/readyz", "/metrics", "/devices"].contains(&path) {
        return page(StatusCode::NOT_FOUND, TEXT, format!("no page {path}\n\n{INDEX}"));
    }
    if !matches!(*method, Method::GET | Method::HEAD) {
        let mut refused =
            page(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD\n".to_owned());
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    match path {
        "/healthz" => report(&probe::health(&admin.state, &admin.rounds)),
        "/readyz" => {
            let (state, standings) =
                (admin.state.borrow().clone(), admin.standings.borrow().clone());
            report(&probe::readiness(&state, &standings))
        }
        "/metrics" => metrics(admin).await,
        "/devices" => devices(admin),
        _ => page(StatusCode::OK, TEXT, INDEX.to_owned()),
    }
}

/// What an agent says that waits for another to end: it lives, and is ready to take over.
pub(super) fn standing_by() -> Page {
    page(StatusCode::OK, TEXT, "standing by, and serving nobody yet\n".to_owned())
}

async fn metrics(admin: &Admin) -> Page {
    admin.holders.refresh().await;
    let mut body = String::new();
    match text::encode(&mut body, &admin.registry) {
        Ok(()) => page(StatusCode::OK, OPENMETRICS, body),
        Err(error) => failed(&error),
    }
}

fn devices(admin: &Admin) -> Page {
    let state = admin.state.borrow().clone();
    match serde_json::to_string_pretty(&state.inventory) {
        Ok(body) => page(StatusCode::OK, JSON, body + "\n"),
        Err(error) => failed(&error),
    }
}

fn report(report: &Report) -> Page {
    let status = if report.is_good() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    page(status, TEXT, report.to_string())
}

fn failed(error: &dyn std::error::Error) -> Page {
    page(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("cannot write the page: {error}\n"))
}

/// Every page is of this moment.
fn page(status: StatusCode, content_type: &'static str, body: String) -> Page {
    let mut page = Response::new(Full::new(Bytes::from(body)));
    *page.status_mut() = status;
    let headers = page.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    page
}
