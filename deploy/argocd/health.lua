-- Health check of Terraform resources for Argo CD (resource.customizations.health.alustan.io_Terraform).
-- Equals the status of kstatus, except for Suspended: the resource waits for a user.
local health = { status = "Progressing", message = "not reconciled by the operator yet" }
local status = obj.status
if status == nil or status.conditions == nil then
  return health
end
if status.message ~= nil and status.message ~= "" then
  health.message = status.message
end

local conditions = {}
for _, condition in ipairs(status.conditions) do
  conditions[condition.type] = condition
end
local function is_true(kind)
  return conditions[kind] ~= nil and conditions[kind].status == "True"
end
local reason = conditions["Ready"] ~= nil and conditions["Ready"].reason or ""

if obj.metadata.deletionTimestamp == nil and status.observedGeneration ~= obj.metadata.generation then
  health.message = "the current spec has not been reconciled yet"
elseif reason == "Suspended" or reason == "AwaitingApproval" then
  health.status = "Suspended"
elseif is_true("Stalled") then
  health.status = "Degraded"
elseif is_true("Ready") and not is_true("Reconciling") then
  health.status = "Healthy"
end
return health
