// Texts of the page in English and Simplified Chinese. Texts of the server (reasons, history) are not translated.
// {n} is a placeholder for a value; "one|many" has the singular and the plural for it.

const LANGUAGES = ['en', 'zh'];

export const words = {
  title: ['Windlass', 'Windlass'],
  otherLanguage: ['中文', 'English'],
  skip: ['Skip to the content', '跳到正文'],
  cluster: ['Cluster', '集群'],
  table: ['Table', '表格'],
  tiles: ['Picture', '图形'],
  node: ['Node', '节点'],
  pod: ['Pod', 'Pod'],
  claim: ['Claim', 'Claim'],
  pending: ['Pending', '等待中'],
  history: ['History', '历史'],
  search: ['Search node, pod, product, id', '搜索节点、Pod、型号、ID'],
  theme: ['Light or dark', '浅色或深色'],
  help: ['Keys', '快捷键'],
  close: ['Close', '关闭'],

  simulated: ['SIMULATED', '模拟'],
  simulatedText: ['These devices do not exist. They come from a simulation.', '这些设备并不存在，来自模拟环境。'],
  loading: ['Reading the state…', '正在读取状态…'],
  allWell: ['All is well', '一切正常'],
  unhealthyDevices: ['{n} device unhealthy|{n} devices unhealthy', '{n} 个设备不健康'],
  troubleOn: ['{devices} on {nodes}', '{devices}（{nodes}）'],
  unknownDevices: ['{n} device of unknown health|{n} devices of unknown health', '{n} 个设备健康状态未知'],
  podsPending: ['{n} pod pending|{n} pods pending', '{n} 个 Pod 等待中'],
  overLimits: ['{n} holder over its limit|{n} holders over their limits', '{n} 个持有者超出上限'],
  nodes: ['nodes', '节点'],
  gpus: ['GPUs', 'GPU'],
  freeGpus: ['free', '整卡空闲'],
  idleGpus: ['idle', '闲置'],
  fragmentedGpus: ['fragmented', '碎片'],
  gpusText: ['GPUs of all nodes', '所有节点的 GPU'],
  freeText: ['Whole healthy GPUs without a holder', '没有人使用的健康整卡'],
  idleText: ['Healthy GPUs and parts of GPUs without a holder', '没有人使用的健康 GPU，部分空闲的也计入'],
  fragmentedText: ['The part of the idle GPUs that a typical pod cannot use', '闲置部分中典型 Pod 无法使用的量'],

  live: ['live', '实时'],
  connecting: ['connecting', '连接中'],
  lost: ['No connection since {time}. The page shows the last state.', '自 {time} 起连接中断。显示的是最后的状态。'],
  retry: ['Try now', '立即重试'],
  busy: ['The server is busy or not ready. Trying again.', '服务器繁忙或尚未就绪，正在重试。'],
  forbidden: ['This account may not read the state.', '此账号无权读取状态。'],
  tokenNeeded: ['A token is required', '需要令牌'],
  otherToken: ['Use another token', '换一个令牌'],
  tokenText: [
    'Create one for a service account that may list nodes and pods. Paste it here; this tab keeps it until you close it.',
    '为有权列出节点和 Pod 的服务账号创建一个令牌，粘贴到这里。令牌只保留在此标签页中，关闭后即失效。',
  ],
  tokenRefused: ['The last token was refused. It may have expired.', '上一个令牌被拒绝，可能已过期。'],
  tokenInvalid: ['This is not a token: it has spaces, or characters that tokens never have.', '这不是令牌：含有空格或令牌中不会出现的字符。'],
  token: ['Token', '令牌'],
  open: ['Open', '打开'],

  filter: ['Show', '显示'],
  all: ['All', '全部'],
  unhealthy: ['Unhealthy', '不健康'],
  free: ['Free', '有空闲'],
  shared: ['Shared', '共享'],
  sort: ['Order', '排序'],
  sort_name: ['by name', '按名称'],
  sort_problems: ['problems first', '问题优先'],
  sort_free: ['most idle first', '闲置多的优先'],
  sort_fragmented: ['most fragmented first', '碎片多的优先'],
  size: ['Size', '大小'],
  size_auto: ['to fit', '自动'],
  size_tiny: ['tiny', '最小'],
  size_small: ['small', '小'],
  size_medium: ['medium', '中'],
  size_large: ['large', '大'],
  size_huge: ['huge', '最大'],
  colour: ['Colour', '颜色'],
  colour_health: ['Health', '健康'],
  colour_holder: ['Holder', '持有者'],
  colour_memory: ['Memory', '显存'],
  colour_utilization: ['Use', '利用率'],
  colour_fragmentation: ['Fragmentation', '碎片'],
  legend_health: ['Devices, with parts as fractions', '设备数，部分按比例计'],
  legend_holder: ['Devices by namespace', '各命名空间的设备数'],
  legend_memory: ['Devices by the part of their memory in use', '按显存使用比例的设备数'],
  legend_utilization: ['Devices by utilization', '按利用率的设备数'],
  legend_fragmentation: [
    'Idle devices by the part of their node that a typical pod cannot use', '闲置设备数，按其节点上典型 Pod 无法使用的比例',
  ],
  entry_held: ['held', '已占用'],
  entry_idle: ['idle', '闲置'],
  entry_unhealthy: ['unhealthy', '不健康'],
  entry_unknown: ['unknown', '未知'],
  entry_none: ['not measured', '未测量'],
  entry_others: ['other namespaces', '其他命名空间'],
  noMatch: ['No node matches.', '没有匹配的节点。'],
  noNodes: ['No node with devices yet.', '还没有带设备的节点。'],
  shownOf: ['{n} of {all} nodes', '{n} / {all} 个节点'],
  noAgent: ['no agent', '无 agent'],
  noDevices: ['no devices', '没有设备'],
  idleOf: ['{n} idle', '{n} 闲置'],

  health: ['Health', '健康'],
  healthy: ['healthy', '健康'],
  health_unhealthy: ['unhealthy', '不健康'],
  unknown: ['unknown', '未知'],
  device: ['Device', '设备'],
  devices: ['Devices', '设备'],
  product: ['Product', '型号'],
  memory: ['Memory', '显存'],
  use: ['Use', '利用率'],
  idle: ['Idle', '闲置'],
  sensors: ['Sensors', '传感器'],
  enforcement: ['Enforcement', '限制方式'],
  holders: ['Holders', '持有者'],
  noHolder: ['none', '无'],
  notOffered: ['not offered as a resource', '未作为资源提供'],
  ofTotal: ['{used} of {all}', '{used} / {all}'],
  whole: ['whole device', '整个设备'],
  ofCompute: ['{part} of compute', '算力 {part}'],
  used: ['{n} used', '已用 {n}'],
  overLimit: ['over its limit', '超出上限'],
  enforce_mig: ['hardware (mig)', '硬件（mig）'],
  enforce_driver: ['driver', '驱动（driver）'],
  enforce_mps: ['daemon (mps)', '守护进程（mps）'],
  enforce_dmem: ['kernel (dmem)', '内核（dmem）'],
  enforce_watched: ['watchdog (watched)', '看门狗（watched）'],
  enforce_none: ['none', '无（none）'],
  places: ['Places and links', '位置与互联'],
  numa: ['NUMA {n}', 'NUMA {n}'],
  distances: ['Distances', '距离'],
  distancesText: [
    'NV: NVLinks. PIX, PXB: PCIe switches. PHB: host bridge. NODE: same NUMA node. SYS: between NUMA nodes.',
    'NV：NVLink 条数。PIX、PXB：PCIe 交换机。PHB：主桥。NODE：同一 NUMA 节点。SYS：跨 NUMA 节点。',
  ],
  cpuFree: ['CPUs free', '空闲 CPU'],
  memoryFree: ['memory free', '空闲内存'],
  nodeUnknown: ['There is no such node. It may have been removed.', '状态中没有此节点：已消失，或从未存在。'],
  podUnknown: ['This pod holds no device and is not pending.', '此 Pod 没有占用设备，也不在等待中。'],

  request: ['Requests', '请求'],
  since: ['pending since', '开始等待'],
  reasonNodes: ['{n} node|{n} nodes', '{n} 个节点'],
  wouldHelp: ['Remedy', '可行的办法'],
  notExplained: ['Only the oldest pods are explained: `windlass cluster explain POD` explains each.',
    '这里只解释等待最久的 Pod：`windlass cluster explain POD` 可解释任一 Pod。'],
  nothingPending: ['No pod is pending.', '没有等待中的 Pod。'],
  nothingHappened: ['There are no events yet.', '还没有发生任何事件。'],
  eventsOverTime: ['Events over time; faults are red', '事件随时间的分布，故障为红色'],
  event_fault: ['fault', '故障'],
  event_recovery: ['recovery', '恢复'],
  event_placed: ['placed', '放置'],
  event_ended: ['ended', '结束'],
  event_appeared: ['appeared', '出现'],
  event_gone: ['gone', '消失'],

  key_search: ['search', '搜索'],
  key_help: ['this list', '本列表'],
  key_views: ['cluster, pending, history', '集群、等待中、历史'],
  key_arrows: ['from device to device; Enter opens its node', '在设备间移动；Enter 打开所在节点'],
  key_next: ['next unhealthy device', '下一个不健康的设备'],
  key_colour: ['next colour', '切换颜色'],
  key_table: ['picture or table', '图形或表格'],
  key_size: ['larger, smaller', '放大、缩小'],
  key_look: ['light or dark; language', '浅色或深色；语言'],
  key_escape: ['back to the cluster, or close', '返回集群，或关闭'],
};

let column = 0;

export const language = () => LANGUAGES[column];

export function setLanguage(name) {
  column = Math.max(0, LANGUAGES.indexOf(name));
}

/** The text of a key, with these values for its placeholders. */
export function t(key, values = {}) {
  if (!Object.hasOwn(words, key)) return key;
  const [one, many = one] = words[key][column].split('|');
  const form = values.n === 1 || values.n === '1' ? one : many;
  return form.replace(/\{(\w+)\}/g, (placeholder, name) => values[name] ?? placeholder);
}

/** The text of a server's value in a family of keys. A value without a text is shown unchanged. */
export function word(family, value) {
  return Object.hasOwn(words, family + value) ? t(family + value) : value.slice(0, 40);
}
